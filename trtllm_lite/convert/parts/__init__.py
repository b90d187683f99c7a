"""Makes the parts of models that several families share."""
