"""``python -m trtllm_lite`` is ``trtllm-lite``."""

from trtllm_lite.cli import main

if __name__ == "__main__":
    main()
