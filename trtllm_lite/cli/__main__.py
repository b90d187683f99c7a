"""``python -m trtllm_lite.cli`` is ``trtllm-lite``."""

from trtllm_lite.cli import main

if __name__ == "__main__":
    main()
