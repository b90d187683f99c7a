// The functions that add bindings to the module, one per concept. module.cc calls them all.
#pragma once

#include <nanobind/nanobind.h>

namespace tl {

void bind_crc32c(nanobind::module_& module);
void bind_cuda(nanobind::module_& module);
void bind_drafting(nanobind::module_& module);
void bind_encoder_loop(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_images(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
void bind_kv_geometry(nanobind::module_& module);
void bind_errors(nanobind::module_& module);
void bind_event_loop(nanobind::module_& module);
void bind_events(nanobind::module_& module);
void bind_executor(nanobind::module_& module);
void bind_adapter(nanobind::module_& module);
void bind_gpu_stages(nanobind::module_& module);
void bind_grammar(nanobind::module_& module);
void bind_loop(nanobind::module_& module);
void bind_plugins(nanobind::module_& module);
void bind_remote_stages(nanobind::module_& module);
void bind_requests(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);
void bind_sockets(nanobind::module_& module);
void bind_text(nanobind::module_& module);

}  // namespace tl
