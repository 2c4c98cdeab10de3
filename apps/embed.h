/* embed.h - files that become part of the program, as read-only bytes. */
#ifndef APPS_EMBED_H
#define APPS_EMBED_H

/* Bytes of a file between NAME_begin and NAME_end, and a zero byte behind them. The names are to be
 * declared as arrays. */
#define EMBED(name, file)                                                                          \
    __asm__(".section .rodata\n"                                                                   \
            ".balign 64\n" name "_begin:\n"                                                        \
            ".incbin \"" file "\"\n" name "_end:\n"                                                \
            ".byte 0\n"                                                                            \
            ".previous\n")

/* Declares these arrays: EMBEDDED const char NAME_begin[]. They are of the program itself, so their
 * addresses need no table that the loader fills. */
#define EMBEDDED extern __attribute__((visibility("hidden")))

#endif
