/* bytes_model_test.c - tiny models of Qwen and Laguna with vocabularies of bytes, by way of
 * carat.h: text to ids and back, answers as characters, ends of answers.
 */
#include "tests/test.h"
#include "tests/toy_model.h"
#include "base/str.h"
#include "base/utf8.h"

enum { CTX = 256, MAX_TOKENS = 120 };

typedef struct record {
    str text, bytes; /* as shown; of the tokens */
    const carat_model *m;
    int n;
    carat_finish finish;
    const char *stop;
} record;

static bool keep(void *user, const carat_event *ev)
{
    record *r = user;
    const char *bytes;
    if (ev->kind == CARAT_EV_TOKEN) {
        int32_t n = carat_token_bytes(r->m, ev->id, false, &bytes);
        str_put(&r->bytes, bytes, (size_t)n);
        r->n++;
    }
    if (ev->kind == CARAT_EV_CONTENT)
        str_put(&r->text, ev->text, ev->n_text);
    if (ev->kind == CARAT_EV_END) {
        r->finish = ev->finish;
        r->stop = ev->stop;
    }
    return true;
}

static int64_t tokenize(const carat_model *m, const char *text, int32_t flags, int32_t *ids)
{
    err e = {0};
    int64_t n = carat_tokenize(m, text, strlen(text), flags, ids, CTX, &e);
    CHECK_MSG(n >= 0 && n <= CTX, "%s", e.text);
    return n;
}

static void generate(carat_session *s, const char *prompt, const carat_generate_options *o,
                     record *r)
{
    int32_t ids[CTX];
    err e = {0};
    carat_timings t;
    int64_t n = tokenize(r->m, prompt, CARAT_TOK_BOS, ids);
    CHECK_OK(carat_generate(s, ids, n, o, keep, r, &t, &e), e);
}

static void free_record(record *r)
{
    str_free(&r->text);
    str_free(&r->bytes);
}

static const struct {
    toy_model_file file;
} models[] = {{{.base = "qwen3", .words = "qwen2"}}, {{.base = "laguna", .words = "laguna"}}};

TEST(bytes_models_read_and_write_text)
{
    static const char text[] =
        "Hello, it's 42\r\n\tna\xC3\xAFve \xE6\x9D\xB1\xE4\xBA\xAC e\xCC\x81 "
        "\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD </think> <|im_end|>\n\n  x";
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        AUTO_MODEL *m = toy_model_open(&models[k].file, NULL);
        int32_t ids[CTX];
        AUTO(str_free) str back = {0};
        carat_model_info info;
        carat_model_get_info(m, &info);
        CHECK(info.has_vocab);
        CHECK_EQ(carat_token_bos(m), -1);
        int64_t n = tokenize(m, text, CARAT_TOK_BOS | CARAT_TOK_SPECIAL, ids);
        for (int64_t i = 0; i < n; i++) {
            const char *bytes;
            int32_t len = carat_token_bytes(m, ids[i], true, &bytes);
            str_put(&back, bytes, (size_t)len);
        }
        CHECK_STR(str_text(&back), text);
    }
}

PLAIN_TEST(bytes_models_answer_in_whole_characters)
{
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        AUTO_MODEL *m = toy_model_open(&models[k].file, NULL);
        carat_session_options so = {.n_ctx = CTX};
        AUTO_SESSION *s;
        err e = {0};
        int broken = 0;
        CHECK_OK(carat_session_open(m, &so, &s, &e), e);
        for (uint64_t seed = 1; seed <= 4; seed++) {
            record r = {.m = m};
            str want = {0};
            carat_generate_options o = {.max_tokens = MAX_TOKENS};
            carat_sampling_default(m, &o.sampling);
            o.sampling = (carat_sampling){.temperature = 1,
                                          .seed = seed,
                                          .top_p = 1,
                                          .repeat_penalty = 1,
                                          .ignore_eog = true};
            generate(s, "Once upon a time", &o, &r);
            CHECK_EQ(r.n, MAX_TOKENS);
            for (size_t i = 0; i < r.bytes.n;) {
                uint32_t cp;
                bool ok;
                int n = utf8_decode(r.bytes.at + i, r.bytes.n - i, &cp, &ok);
                str_put(&want, ok ? r.bytes.at + i : "\xEF\xBF\xBD", ok ? (size_t)n : 3);
                broken += !ok;
                i += (size_t)n;
            }
            CHECK_EQ(r.text.n, want.n);
            CHECK(!memcmp(str_text(&r.text), str_text(&want), want.n));
            str_free(&want);
            free_record(&r);
        }
        CHECK(broken); /* nonsense holds parts of characters */
    }
}

/* Forces one token after the other. */
typedef struct forced {
    int32_t ids[64];
    int64_t n, at;
} forced;

static enum carat_mask_use fill(void *user, uint32_t *allowed, int32_t n_vocab)
{
    const forced *f = user;
    int32_t id = f->ids[f->at < f->n ? f->at : f->n - 1];
    CHECK(id < n_vocab);
    allowed[id / 32] |= UINT32_C(1) << id % 32;
    return CARAT_MASK_APPLY;
}

static void taken(void *user, int32_t id)
{
    forced *f = user;
    (void)id;
    f->at++;
}

static void answer(carat_session *s, const carat_model *m, const char *text, const char *stop,
                   bool ignore_eog, record *r)
{
    forced f = {.n = 0};
    carat_mask mask = {fill, taken, &f};
    carat_generate_options o = {.max_tokens = 40, .mask = &mask};
    carat_sampling_default(m, &o.sampling);
    o.sampling.ignore_eog = ignore_eog;
    o.stop = &stop;
    o.n_stop = stop != NULL;
    *r = (record){.m = m};
    f.n = tokenize(m, text, 0, f.ids);
    generate(s, "Say", &o, r);
}

TEST(laguna_answers_end_at_a_spelled_mark)
{
    AUTO_MODEL *m = toy_model_open(&models[1].file, NULL);
    carat_session_options so = {.n_ctx = CTX};
    AUTO_SESSION *s;
    record r;
    err e = {0};
    int32_t ids[8];
    CHECK_OK(carat_session_open(m, &so, &s, &e), e);
    CHECK_EQ(tokenize(m, "</assistant>", CARAT_TOK_SPECIAL, ids), 1);
    CHECK(carat_token_is_eog(m, ids[0]));
    answer(s, m, "yes</assistant>\nno", NULL, false, &r); /* in several tokens */
    CHECK_STR(str_text(&r.text), "yes");
    CHECK_EQ(r.finish, CARAT_FINISH_STOP);
    CHECK(!r.stop);
    free_record(&r);
    answer(s, m, "yes</assistant>\nno", "e", false, &r); /* the request's own comes first */
    CHECK_STR(str_text(&r.text), "y");
    CHECK_STR(r.stop, "e");
    free_record(&r);
    answer(s, m, "a </assist ant> b", NULL, true, &r);
    CHECK(strstr(str_text(&r.text), "a </assist ant> b"));
    CHECK_EQ(r.finish, CARAT_FINISH_LENGTH);
    free_record(&r);
    answer(s, m, "yes</assistant>no", NULL, true, &r); /* asked to go on at ends */
    CHECK(strstr(str_text(&r.text), "yes</assistant>no"));
    free_record(&r);
}
