"""Opens what is converted: the files of a model, their tensors, and what accompanies them."""
