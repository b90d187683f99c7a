"""Statistics of what products multiply, gathered while an engine reads a text."""
