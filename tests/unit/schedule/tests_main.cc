// The program of all *_test.cc files, which runs the test named on its command line.
#include "check.h"

TEST_MAIN
