"""Rounds the elements of a matrix to few bits, in numpy alone: matrices are [out, in], blocks run along the columns."""
