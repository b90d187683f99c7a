# The instruction sets that CPU kernels are compiled for, best first, and the features that each needs. A feature is what
# the compiler is given with -m, and what the machine is asked for when an executor is made (cpu/kernel_registry.h). The
# macros that the compiler defines for features choose the vectors (cpu/simd/simd.h) and the products
# (cpu/products/products.h).
set(FEATURES_portable)
set(FEATURES_avx2 avx2 fma f16c)
set(FEATURES_avx512 ${FEATURES_avx2} avx512f avx512bw avx512dq avx512vl)
set(FEATURES_amx ${FEATURES_avx512} avx512vbmi avx512vnni avx512bf16 amx-tile amx-bf16)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(ISAS amx avx512 avx2 portable)
else()
  set(ISAS portable)
endif()

# NAME=FEATURE,FEATURE… for each instruction set.
set(ISA_FEATURES)
foreach(isa ${ISAS})
  list(JOIN FEATURES_${isa} "," features)
  list(APPEND ISA_FEATURES "${isa}=${features}")
endforeach()
