/* emu_trace.h - what waits for what, in the emulator: launches and copies of a stretch of a
 * program, with vector clocks and with the times that they would have if every stream ran by
 * itself. And streams that stall or fail.
 *
 * The emulator runs everything at once, so a wait that is missing changes no result there. A vector
 * clock shows it. clock[i] of an op is how many ops of stream i end before it begins, itself
 * included; the host is stream 0 and does nothing but wait. */
#ifndef TESTS_CUDA_EMU_TRACE_H
#define TESTS_CUDA_EMU_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_CLOCKS = 40 /* streams with a clock of their own; later ones are not traced */ };
typedef struct emu_traced {
    int stream, gpu;
    const void *to; /* of a copy; NULL: a launch */
    size_t n_bytes;
    double begin, end;
    uint32_t clock[EMU_CLOCKS];
} emu_traced;

/* From now on, every stream being idle. A launch takes launch_time, a copy copy_time. */
void emu_trace_begin(double launch_time, double copy_time);
/* In the order in which they were enqueued; valid until the next trace. */
const emu_traced *emu_trace_end(size_t *n);
int emu_stream_number(const void *stream); /* emu_traced.stream of a cudaStream_t */
/* Does a end before b begins, however long ops take? */
static inline bool emu_ends_before(const emu_traced *a, const emu_traced *b)
{
    return a != b && b->clock[a->stream] >= a->clock[a->stream];
}

/* The n-th launch or copy from now on that a stream gets, n from 1 on, never ends
 * (EMU_STALL), or fails, and so does all that follows there (EMU_FAIL). To wait for a stream that
 * stalls would take forever: emu_waits_forever counts that, and the call fails. */
typedef enum emu_fault { EMU_FAIL, EMU_STALL } emu_fault;
void emu_fault_after(void *stream, int n, emu_fault how);
int emu_waits_forever(void);
/* This GPU cannot be opened from now on, as one that fell off the bus; -1: all can. */
void emu_lose_gpu(int gpu);
/* This GPU is lost when it is opened for the n-th time from now on. */
void emu_lose_gpu_at(int gpu, int n);
int emu_lost_gpu(void); /* -1: none */

#ifdef __cplusplus
}
#endif
#endif
