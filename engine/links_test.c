/* links_test.c - --split auto: which split is chosen by which links, and what happens where the
 * chosen one is not possible. CPU devices stand for GPUs, with links of given speeds.
 */
#include "engine/links.h"
#include "carat.h"
#include "engine/engine_int.h"
#include "tests/splits_rig.h"
#include "tests/synth_file.h"
#include "tests/test.h"

#include <string.h>

/* Decoding by two H200s of one host, against one of them (bench/journal/gpus.md): 31B gains, the
 * others lose. Memory is read at 4 TB/s, a copy takes 8 us. */
PLAIN_TEST(gains_are_on_the_side_that_was_measured)
{
    static const struct {
        double gigabytes;
        int32_t n_layer;
        bool pays;
    } c[] = {{18.3, 60, true}, {2.6, 30, false}, {2.5, 42, false}, {1.9, 40, false}};
    const link_speed s = {.bytes_s = 4e12, .copy_s = 8e-6};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        double gain = links_gain(&s, 2, c[i].gigabytes * 1e9, 2 * c[i].n_layer);
        CHECK_MSG((gain > 1.1) == c[i].pays && gain < 2, "%.1f GB: %.2f", c[i].gigabytes, gain);
    }
    CHECK(links_gain(&s, 4, 18.3e9, 120) > links_gain(&s, 2, 18.3e9, 120));
    const link_speed none[] = {{0}, {.bytes_s = 4e12}, {.copy_s = 8e-6}};
    for (int i = 0; i < 3; i++)
        CHECK(links_gain(&none[i], 2, 18.3e9, 120) == 0);
    CHECK(links_gain(&s, 1, 18.3e9, 120) == 0 && links_gain(&s, 2, 0, 120) == 0);
}

/* auto on n devices with such links; checks the number of ranks and a word of the reason. */
static void check_choice(const char *path, const link_speed *s, carat_model_options o,
                         split_place at, int32_t n_ranks, const char *says)
{
    carat_model *m;
    carat_error e = {0};
    carat_model_info i;
    at.split = "auto";
    links_of_stand_ins = s;
    carat_status st = splits_open(path, o, at, &m, &e);
    links_of_stand_ins = NULL;
    CHECK_OK(st, e);
    carat_model_get_info(m, &i);
    CHECK_MSG(m->core.n_ranks == n_ranks, "%d ranks: %s", m->core.n_ranks, i.device_why);
    CHECK_EQ(m->n_stages, at.n);
    CHECK_MSG(strstr(i.device_why, says), "%s", i.device_why);
    carat_model_close(m);
}

/* Copies so slow that a token of two ranks is `gain` times as fast. */
static link_speed links_for(const carat_model *m, double gain)
{
    const double bytes_s = 1e9, alone = (double)m->core.active_bytes / bytes_s;
    return (link_speed){bytes_s, alone * (1 / gain - 0.5) / (2 * m->core.n_layer)};
}

PLAIN_TEST(split_auto_is_tensor_where_links_make_it_pay)
{
    const char *path = synth_file("tiny-dense", "f32", NULL, NULL);
    carat_model *m;
    carat_error e = {0};
    CHECK_OK(carat_model_open(path, &(carat_model_options){.vocab_only = true}, &m, &e), e);
    const link_speed pays = links_for(m, 1.101), not = links_for(m, 1.099);
    carat_model_close(m);
    const carat_model_options none = {0};
    check_choice(path, &pays, none, (split_place){.n = 2}, 2, "auto is tensor: a copy");
    check_choice(path, &not, none, (split_place){.n = 2}, 0, "auto is layers: a copy");
    check_choice(path, &not, none, (split_place){.n = 3}, 3, "auto is tensor");
    check_choice(path, NULL, none, (split_place){.n = 2}, 0, "there are no two GPUs");
    check_choice(path, &pays, none, (split_place){.n = 1}, 0, "auto is layers");
    /* what only one of the splits can do leaves no choice */
    check_choice(path, &pays, none, (split_place){.n = 2, .parts = "1,2"}, 0, "is for layers");
}

/* It is found out when the model is split, and once more it is opened. */
PLAIN_TEST(split_auto_is_layers_where_a_model_cannot_be_cut)
{
    const link_speed fast = {1e6, 1e-12};
    const char *path = synth_file("tiny-embeddinggemma", "f32", NULL, NULL);
    check_choice(path, &fast, (carat_model_options){0}, (split_place){.n = 2}, 0, "cannot be cut");
}

PLAIN_TEST(split_auto_wants_gpus_that_are_here)
{
    const char *path = synth_file("tiny-dense", "f32", NULL, NULL);
    carat_model *m;
    carat_error e = {0};
    const carat_model_options plan = {
        .split = "auto", .vocab_only = true, .plan_gpu_mb = {24000, 24000}};
    CHECK_EQ(carat_model_open(path, &plan, &m, &e), CARAT_E_ARG);
    CHECK_MSG(!m && strstr(e.text, "--split auto measures links"), "%s", e.text);
    e = (carat_error){0};
    const carat_model_options bad = {.split = "auto", .device = "cpu,cpu,gpu"};
    CHECK_EQ(carat_model_open(path, &bad, &m, &e), CARAT_E_ARG);
    CHECK_MSG(strstr(e.text, "device 'cpu,cpu,gpu'"), "%s", e.text);
}
