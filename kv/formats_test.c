/* formats_test.c - the words that choose formats, good and bad, and what layouts make of them. */
#include "kv/kv.h"
#include "tests/test.h"

#include <stdio.h>

static kv_choice chosen(kv_words w)
{
    err e = {0};
    kv_choice c;
    CHECK_OK(kv_choice_parse(&c, &w, &e), e);
    return c;
}

TEST(kv_words_choose_formats)
{
    char buf[32];
    kv_choice c = chosen((kv_words){0});
    CHECK(c.k.type == NUM_F16 && c.v.type == NUM_F16 && !c.n_rules && c.single == KV_SINGLE_AUTO);
    c = chosen((kv_words){.k = "Q8_0"});
    CHECK(c.k.type == NUM_Q8_0 && c.v.type == NUM_Q8_0 && !c.k.rot);
    c = chosen((kv_words){.k = "tq3_0", .v = "q4_0+rot", .single = "off"});
    CHECK(c.k.type == NUM_TQ3_0 && c.k.rot && c.v.type == NUM_Q4_0 && c.v.rot);
    CHECK_EQ(c.single, KV_SINGLE_OFF);
    CHECK_STR(kv_format_name(c.k, buf, sizeof buf), "tq3_0");
    CHECK_STR(kv_format_name(c.v, buf, sizeof buf), "q4_0+rot");
    c = chosen((kv_words){.layers = "global=tq3_0,swa=q8_0/q4_0,12=f32,3-7=IQ4_NL"});
    CHECK_EQ(c.n_rules, 4);
    CHECK(c.rule[0].layers == KV_RULE_GLOBAL && c.rule[1].layers == KV_RULE_WINDOW);
    CHECK(c.rule[1].k.type == NUM_Q8_0 && c.rule[1].v.type == NUM_Q4_0);
    CHECK(c.rule[2].first == 12 && c.rule[2].last == 12 && c.rule[3].last == 7);
}

TEST(kv_words_that_mean_nothing_are_refused)
{
    static const struct {
        kv_words w;
        status st;
        const char *part;
    } bad[] = {
        {{.k = "q9_9"}, E_UNSUPPORTED, "'q9_9' is no type"},
        {{.k = ""}, E_UNSUPPORTED, "'' is no type"},
        {{.k = "q4_k"}, E_UNSUPPORTED, "'q4_k' is no type"},
        {{.k = "q8_0+"}, E_UNSUPPORTED, "'q8_0+' is no type"},
        {{.k = "+rot"}, E_UNSUPPORTED, "'+rot' is no type"},
        {{.v = "f16+rot"}, E_UNSUPPORTED, "only formats in blocks can be rotated"},
        {{.single = "yes"}, E_ARG, "on, off or auto"},
        {{.layers = ""}, E_ARG, "expected SPEC=TYPE"},
        {{.layers = "global"}, E_ARG, "expected SPEC=TYPE"},
        {{.layers = "globe=q8_0"}, E_ARG, "'globe=q8_0'"},
        {{.layers = "global=q8_0,"}, E_ARG, "expected SPEC=TYPE"},
        {{.layers = "7-3=q8_0"}, E_ARG, "'7-3=q8_0'"},
        {{.layers = "-3=q8_0"}, E_ARG, "'-3=q8_0'"},
        {{.layers = "3-=q8_0"}, E_ARG, "'3-=q8_0'"},
        {{.layers = "99999999999999999999=q8_0"}, E_ARG, "expected SPEC=TYPE"},
        {{.layers = "swa=q8_0/"}, E_UNSUPPORTED, "'' is no type"},
        {{.layers = "swa=q8_0/q4_0/q4_0"}, E_UNSUPPORTED, "'q4_0/q4_0' is no type"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kv_choice c, before;
        err e = {0};
        memset(&c, 0x5a, sizeof c);
        before = c;
        CHECK_STATUS(kv_choice_parse(&c, &bad[i].w, &e), bad[i].st);
        CHECK(!memcmp(&c, &before, sizeof c));
        CHECK_MSG(strstr(e.text, bad[i].part), "\"%s\" does not say \"%s\"", e.text, bad[i].part);
    }
    char many[512] = "0=f16";
    for (int i = 0; i < KV_RULES_MAX; i++)
        strcat(many, ",0=f16");
    kv_choice c;
    err e = {0};
    CHECK_STATUS(kv_choice_parse(&c, &(kv_words){.layers = many}, &e), E_LIMIT);
}

/* A window layer, a global one, a global one with one stream, a global one with narrow heads. */
static kv_layout laid_out(kv_words words, device *dev, status want, const char *part)
{
    static const float freq[1] = {1};
    static const rope turn = {.n_pairs = 1, .inv_freq = freq, .n_turning = 1, .turns = freq};
    static const weight norm = {.name = "k_norm"};
    static const kv_spec spec[] = {{.layer = 0, .window = 512, .n_head_kv = 2, .head_dim = 256},
                                   {.layer = 1, .n_head_kv = 1, .head_dim = 512},
                                   {.layer = 2,
                                    .n_head_kv = 1,
                                    .head_dim = 512,
                                    .k_is_v = true,
                                    .k_norm = &norm,
                                    .k_rope = &turn},
                                   {.layer = 3, .n_head_kv = 1, .head_dim = 40}};
    kv_layout l;
    err e = {0};
    kv_want_layout w = {
        .spec = spec, .n = 4, .choice = chosen(words), .n_ctx = 4096, .rows_max = 9, .dev = {dev}};
    CHECK_STATUS(kv_layout_init(&l, &w, &e), want);
    if (want) {
        CHECK_MSG(strstr(e.text, part), "\"%s\" does not say \"%s\"", e.text, part);
        CHECK(!l.view && !l.n);
    }
    return l;
}

TEST(kv_layout_follows_the_last_rule_that_speaks)
{
    AUTO(kv_layout_free)
    kv_layout l = laid_out((kv_words){.k = "q8_0",
                                      .v = "f16",
                                      .layers = "global=tq3_0,3=f32,swa=q4_0+rot/q8_0,1=bf16"},
                           NULL, OK, NULL);
    CHECK(l.view[0].k_type == NUM_Q4_0 && l.view[0].k_rot && l.view[0].k_row_bytes == 144);
    CHECK(l.view[0].v_type == NUM_Q8_0 && !l.view[0].v_rot && l.view[0].v_row_bytes == 272);
    CHECK(l.view[1].k_type == NUM_BF16 && !l.view[1].k_rot && l.view[1].v_row_bytes == 1024);
    CHECK(l.view[2].k_type == NUM_TQ3_0 && l.view[2].k_rot && l.view[2].k_row_bytes == 224);
    CHECK(l.view[3].k_type == NUM_F32 && l.view[3].k_row_bytes == 160);
    CHECK_EQ(l.all.ring, 520 * 2 * (144 + 272));
    CHECK_EQ(l.all.linear, 4096 * (2 * 1024 + 2 * 224 + 2 * 160));
}

/* Layers 3, 7 and 11 of a model attend, none of them in a window; all others are recurrent. */
TEST(kv_rules_name_layers_by_their_number_in_the_model)
{
    static const kv_spec spec[] = {{.layer = 3, .n_head_kv = 1, .head_dim = 64},
                                   {.layer = 7, .n_head_kv = 1, .head_dim = 64},
                                   {.layer = 11, .n_head_kv = 1, .head_dim = 40}};
    static const struct {
        kv_words w;
        status st;
        const char *part;
    } asked[] = {
        {{.layers = "7=q8_0,4-11=bf16,3-7=f32"}, OK, NULL},
        {{.layers = "0=q8_0"}, E_ARG, "layers that keep keys of their own are 3, 7, 11"},
        {{.layers = "4-6=q8_0"}, E_ARG, "layer 6 (--kv-layer): "},
        {{.layers = "3-12=f32"}, E_ARG, "layer 12 (--kv-layer): "},
        {{.layers = "swa=q8_0"}, E_ARG, "sliding-window layers (--kv-layer): this model has none"},
        {{.layers = "11=q8_0"}, E_UNSUPPORTED, "layer 11 has heads of 40"},
        {{.single = "on"}, E_UNSUPPORTED, "(--kv-single on): no layer of this model"},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        kv_layout l;
        err e = {0};
        const kv_want_layout w = {
            .spec = spec, .n = 3, .choice = chosen(asked[i].w), .n_ctx = 64, .rows_max = 4};
        CHECK_STATUS(kv_layout_init(&l, &w, &e), asked[i].st);
        CHECK_MSG(!asked[i].part || strstr(e.text, asked[i].part), "\"%s\" does not say \"%s\"",
                  e.text, asked[i].part);
        if (asked[i].st)
            continue;
        CHECK(l.view[0].k_type == NUM_F32 && l.view[1].k_type == NUM_F32 &&
              l.view[2].k_type == NUM_BF16);
        kv_layout_free(&l);
    }
}

static kernel_speed reads_all(const device *d, const kv_view *kv, char *text, size_t cap)
{
    (void)d, (void)kv;
    snprintf(text, cap, "anything");
    return KERNEL_FULL;
}

static bool prefers_f16(const device *d, const kv_view *kv)
{
    (void)d;
    return kv->single && kv->k_type == NUM_F16;
}

TEST(kv_layout_keeps_one_stream_unasked_where_a_device_prefers_it)
{
    for (int prefers = 0; prefers < 2; prefers++) {
        device d = {.name = "able", .attend_kernel = reads_all};
        d.one_stream = prefers ? prefers_f16 : NULL;
        AUTO(kv_layout_free) kv_layout l = laid_out((kv_words){0}, &d, OK, NULL);
        CHECK_EQ(l.view[2].single, prefers);
        kv_layout_free(&l);
        l = laid_out((kv_words){.single = "on"}, &d, OK, NULL);
        CHECK(l.view[2].single);
        kv_layout_free(&l);
        l = laid_out((kv_words){.single = "off"}, &d, OK, NULL);
        CHECK(!l.view[2].single);
        kv_layout_free(&l);
        l = laid_out((kv_words){.layers = "2=q8_0"}, &d, OK, NULL); /* of the format, too */
        CHECK(!l.view[2].single);
    }
}

TEST(kv_layout_keeps_one_stream_where_it_may)
{
    static device plain = {.name = "plain"}; /* reads floats in two streams only */
    kv_layout l = laid_out((kv_words){0}, NULL, OK, NULL);
    CHECK(l.view[2].single && l.view[2].v_row_bytes == 0 && l.view[2].k_rope);
    CHECK(!l.view[0].single && !l.view[1].single);
    kv_layout_free(&l);
    l = laid_out((kv_words){.single = "off"}, NULL, OK, NULL);
    CHECK(!l.view[2].single && l.view[2].v_row_bytes == 1024);
    kv_layout_free(&l);
    l = laid_out((kv_words){.k = "f16", .v = "bf16"}, NULL, OK, NULL);
    CHECK(!l.view[2].single);
    kv_layout_free(&l);
    l = laid_out((kv_words){.k = "f32", .layers = "2=tq3_0"}, NULL, OK, NULL);
    CHECK(!l.view[2].single); /* rotated: only when asked for */
    kv_layout_free(&l);
    l = laid_out((kv_words){.k = "f32", .layers = "2=tq3_0", .single = "on"}, NULL, OK, NULL);
    CHECK(l.view[2].single && l.view[2].v_rot);
    kv_layout_free(&l);
    l = laid_out((kv_words){0}, &plain, OK, NULL);
    CHECK(!l.view[2].single);
    kv_layout_free(&l);
    laid_out((kv_words){.single = "on"}, &plain, E_UNSUPPORTED, "plain cannot read");
    laid_out((kv_words){.k = "f16", .v = "bf16", .single = "on"}, NULL, E_ARG, "one stream");
    laid_out((kv_words){.k = "f32", .layers = "0=q8_0"}, &plain, E_UNSUPPORTED,
             "plain cannot attend");
}

TEST(kv_layout_refuses_what_cannot_be)
{
    laid_out((kv_words){.k = "q8_0"}, NULL, E_UNSUPPORTED, "layer 3 has heads of 40");
    laid_out((kv_words){.layers = "3=q8_0+rot"}, NULL, E_UNSUPPORTED, "a multiple of 128");
    laid_out((kv_words){.layers = "4=f16"}, NULL, E_ARG, "layer 4");
    laid_out((kv_words){.layers = "0-4=f16"}, NULL, E_ARG, "are 0 to 3");
    laid_out((kv_words){.layers = "99999=f16"}, NULL, E_ARG, "layer 99999");
}
