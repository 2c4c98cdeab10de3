/* chat.c - a whole program on libcarat: one question, one streamed answer.
 *
 *     cc -Iinclude examples/chat.c -L. -lcarat -Wl,-rpath,. -o chat
 *     ./chat model.gguf "What is carat?"
 */
#include <carat.h>

#include <stdio.h>

static bool show(void *user, const carat_event *ev)
{
    (void)user;
    if (ev->kind == CARAT_EV_CONTENT) {
        fwrite(ev->text, 1, ev->n_text, stdout);
        fflush(stdout);
    }
    return !ferror(stdout); /* false would end the answer */
}

/* The question as a JSON string: quotes, backslashes and control characters are escaped. */
static void put_json(char *out, size_t cap, const char *text)
{
    size_t n = (size_t)snprintf(out, cap, "[{\"role\":\"user\",\"content\":\"");
    for (; *text && n + 16 < cap; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            out[n++] = '\\';
        if (c < 0x20)
            n += (size_t)snprintf(out + n, cap - n, "\\u%04x", c);
        else
            out[n++] = (char)c;
    }
    snprintf(out + n, cap - n, "\"}]");
}

int main(int argc, char **argv)
{
    carat_error e = {0};
    carat_model *m = NULL;
    carat_session *s = NULL;
    carat_chat prompt = {0};
    carat_timings t = {0};
    char messages[8192];

    if (argc != 3) {
        fprintf(stderr, "usage: chat MODEL.gguf QUESTION\n");
        return 2;
    }
    put_json(messages, sizeof messages, argv[2]);
    if (carat_model_open(argv[1], NULL, &m, &e) || carat_session_open(m, NULL, &s, &e) ||
        carat_chat_render(m, messages, NULL, NULL, &prompt, &e))
        goto out;
    carat_generate_options opt = {.parse = true, .starts_thinking = prompt.starts_thinking};
    carat_sampling_default(m, &opt.sampling);
    if (carat_generate(s, prompt.ids, prompt.n_ids, &opt, show, NULL, &t, &e))
        goto out;
    printf("\n");
    fprintf(stderr, "%lld tokens in %.2f s\n", (long long)t.n_generated, t.decode_ms * 1e-3);
out:
    if (e.status)
        fprintf(stderr, "chat: %s\n", e.text);
    carat_chat_free(&prompt);
    carat_session_close(s);
    carat_model_close(m);
    return e.status ? 1 : 0;
}
