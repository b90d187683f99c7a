"""Makes the generated parts of README.md and of docs/."""
