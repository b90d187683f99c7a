"""Makes the tables of docs/design/parallelism.md."""
