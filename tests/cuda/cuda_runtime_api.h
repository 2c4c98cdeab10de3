/* cuda_runtime_api.h - replaces the toolkit's header in the emulated build: the host calls that
 * backend/cuda makes, on host memory. */
#ifndef TESTS_CUDA_RUNTIME_API_H
#define TESTS_CUDA_RUNTIME_API_H

#include "backend/cuda/none.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th copy from now on such a stream fails, n from 1 on; 0: none. */
#define EMU_CAN_FAIL
void emu_fail_copy(int n);

#ifdef __cplusplus
}
#endif
#endif
