/* relax.h - what a thread does between two looks at a word of memory that another one will write.
 */
#ifndef BASE_RELAX_H
#define BASE_RELAX_H

/* The instruction by which a processor spends less on a loop that waits. */
static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
