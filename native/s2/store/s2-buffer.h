#pragma once

// A buffer type of the CPU backend whose tensors are experts in a store. Call sites in ggml-cpu.cpp and
// llama-model-loader.cpp.

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Takes expert tensors that the attached store knows; their address range is reserved and never backed.
ggml_backend_buffer_type_t s2_store_buffer_type(void);

// Whether the tensor's data is the store's to read: nothing is to be written to it.
GGML_API bool s2_store_holds(const struct ggml_tensor * tensor);

// Shows the attached store a weight that has been loaded: routers let it look ahead.
GGML_API void s2_store_show(const struct ggml_tensor * tensor);

#ifdef __cplusplus
}
#endif
