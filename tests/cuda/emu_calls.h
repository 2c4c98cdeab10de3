/* emu_calls.h - behind emu.h for files of many instances (Makefile): their functions are called,
 * not copied into each instance, which takes the compiler a third of the time. */
#undef __forceinline__
#define __forceinline__ inline
