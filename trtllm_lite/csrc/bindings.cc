#include <nanobind/nanobind.h>
NB_MODULE(_core, m) { m.def("f", [] { return 1; }); }
