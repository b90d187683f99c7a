"""How the elements of a matrix are rounded to few bits: numpy alone, matrices [out, in], blocks along the columns."""
