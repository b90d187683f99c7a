#include <pthread.h>

#include "bindings/bindings.h"
#include "cpu/read_rate.h"
#include "host/cpu_count.h"

NB_MODULE(_core, module) {
  module.doc() = R"(
      The C++ runtime. Raises the classes of ``trtllm_lite.errors``.

      Arrays are C-contiguous and of exactly the dtypes given here: nothing is converted silently.)";
  // A forked child process lacks the threads that hold Python objects, so it cannot release these objects when it ends.
  pthread_atfork(nullptr, nullptr, [] { nanobind::set_leak_warnings(false); });
  tl::bind_errors(module);
  tl::bind_crc32c(module);
  tl::bind_engine(module);
  tl::bind_kv_geometry(module);
  tl::bind_images(module);
  tl::bind_kernels(module);
  tl::bind_adapter(module);
  tl::bind_executor(module);
  tl::bind_cuda(module);
  tl::bind_gpu_stages(module);
  tl::bind_plugins(module);
  tl::bind_remote_stages(module);
  tl::bind_sampling(module);
  tl::bind_grammar(module);
  tl::bind_events(module);
  tl::bind_drafting(module);
  tl::bind_loop(module);
  tl::bind_event_loop(module);
  tl::bind_encoder_loop(module);
  tl::bind_text(module);
  tl::bind_requests(module);
  tl::bind_sockets(module);
  module.def("best_read_rate", &tl::best_read_rate, nanobind::arg("bytes"), nanobind::arg("num_threads"),
             nanobind::arg("passes"), nanobind::call_guard<nanobind::gil_scoped_release>(), R"(
                 Bytes per second at which ``num_threads`` threads together read the same ``bytes`` of memory
                 repeatedly.

                 It is the best rate of ``passes`` passes over each of several access patterns. Raises LimitError if
                 there is too little memory.)");
  module.def("resolve_num_threads", &tl::resolve_num_threads, nanobind::arg("num_threads") = 0, R"(
      ``num_threads``, or for 0 the number of cores this process may use. Raises ArgumentError for a bad number.)");
}
