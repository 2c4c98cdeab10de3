/* swiglu.h - the constants of ACT_SWIGLU_CUT (backend/ops.h), for kernels of every device. */
#ifndef BACKEND_SWIGLU_H
#define BACKEND_SWIGLU_H

#define SWIGLU_CUT 7.0f
#define SWIGLU_SLOPE 1.702f

#endif
