"""The stages of an engine as actors of Ray, on one machine or several. This package needs the extra ``ray``."""
