/* chat_absent.c - stands in for text/chat until that lands, and leaves with it. */
#include "text/chat.h"

#define WEAK __attribute__((weak))

WEAK chat_format chat_format_of(const char *t, size_t n)
{
    (void)t, (void)n;
    return CHAT_NONE;
}
WEAK status chat_render(chat_format f, const char *m, size_t nm, const char *t, size_t nt,
                        const carat_chat_options *o, chat_prompt *p, err *e)
{
    (void)f, (void)m, (void)nm, (void)t, (void)nt, (void)o, (void)p;
    return err_set(e, E_UNSUPPORTED, "no chat yet");
}
WEAK void chat_prompt_free(chat_prompt *p)
{
    (void)p;
}
WEAK status chat_tokenize(const vocab *v, const chat_prompt *p, bool raw, id_list *out, err *e)
{
    (void)v, (void)p, (void)raw, (void)out;
    return err_set(e, E_UNSUPPORTED, "no chat yet");
}
WEAK status answer_open(answer_parser **a, chat_format f, bool st, answer_fn fn, void *user, err *e)
{
    (void)a, (void)f, (void)st, (void)fn, (void)user;
    return err_set(e, E_UNSUPPORTED, "no chat yet");
}
WEAK void answer_close(answer_parser *a)
{
    (void)a;
}
WEAK status answer_put(answer_parser *a, const char *b, size_t n, err *e)
{
    (void)a, (void)b, (void)n;
    return err_set(e, E_UNSUPPORTED, "no chat yet");
}
WEAK status answer_end(answer_parser *a, err *e)
{
    (void)a;
    return err_set(e, E_UNSUPPORTED, "no chat yet");
}
WEAK int32_t answer_n_calls(const answer_parser *a)
{
    (void)a;
    return 0;
}
