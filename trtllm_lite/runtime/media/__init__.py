"""Images as inputs of models: reading them, and cutting them into the patches that a vision tower takes."""
