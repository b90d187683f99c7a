"""Makes ``python -m trtllm_lite`` the same as ``trtllm-lite``."""

from trtllm_lite.cli import main

if __name__ == "__main__":
    main()
