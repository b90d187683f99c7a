// The program of all *_test.cc files, which runs the test that it is given the name of.
#include "check.h"

TEST_MAIN
