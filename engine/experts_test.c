/* experts_test.c - what is asked for about experts on a GPU, where there is none: refused with a
 * sentence. tests/cuda/check_experts.c has the models.
 */
#include "carat.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include <string.h>

static void refused(const char *path, carat_model_options o, const char *part)
{
    carat_model *m;
    carat_error e = {0};
    CHECK_EQ(carat_model_open(path, &o, &m, &e), CARAT_E_ARG);
    CHECK_MSG(!m && strstr(e.text, part), "%s", e.text);
}

TEST(shares_of_experts_that_cannot_be_are_refused)
{
    static const char *const no_share[] = {"",
                                           "x",
                                           "-1",
                                           "2.5",
                                           "1.01",
                                           "101%",
                                           "0.5x",
                                           "nan",
                                           "0x1",
                                           "50%%",
                                           "1e3",
                                           "0",
                                           "99999999999999999999"};
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, "moe");
    const char *path = fidelity_write(&f, NULL);
    for (size_t i = 0; i < sizeof no_share / sizeof *no_share; i++) {
        carat_model_options o = {.device = "cpu", .experts_gpu = no_share[i]};
        refused(path, o, i == 11 ? "need a GPU" : "expected auto, a part");
    }
    refused(path, (carat_model_options){.device = "cpu", .experts_gpu = "0.5"}, "need a GPU");
    refused(path, (carat_model_options){.device = "cpu", .experts_cpu = "0.5"}, "need a GPU");
    refused(path, (carat_model_options){.device = "cpu", .gpu_mb = 100}, "need a GPU");
    refused(path, (carat_model_options){.device = "cpu,cpu", .gpu_mb = 100}, "need a GPU");
    refused(path, (carat_model_options){.device = "cpu", .gpu_mb = -1}, "expected 1 MiB or more");
    refused(path,
            (carat_model_options){.device = "cpu,cpu", .experts_gpu = "0.5", .cpu_experts = true},
            "cannot be combined with");
    static const char *const no_part[] = {"",     "x",   "-1",   "1.01", "101%",
                                          "0.5x", "nan", "1e-1", "2"};
    for (size_t i = 0; i < sizeof no_part / sizeof *no_part; i++)
        refused(path, (carat_model_options){.device = "cpu", .experts_cpu = no_part[i]},
                "expected off, auto, or a part");
    refused(path,
            (carat_model_options){.device = "cpu,cpu", .experts_cpu = "auto", .cpu_experts = true},
            "cannot be combined with");
    refused(path, (carat_model_options){.device = "cpu", .experts_prefetch = "1"}, "need a GPU");
    static const char *const no_number[] = {"", "5", "-1", "1x", "on", "12"};
    for (size_t i = 0; i < sizeof no_number / sizeof *no_number; i++)
        refused(path, (carat_model_options){.device = "cpu", .experts_prefetch = no_number[i]},
                "expected auto, off, or 1 to 4");
    refused(
        path,
        (carat_model_options){.device = "cpu,cpu", .experts_prefetch = "1", .cpu_experts = true},
        "cannot be combined with");
}

TEST(models_of_a_cpu_have_all_experts_in_memory)
{
    AUTO(fidelity_close) fidelity f;
    AUTO_MODEL *m;
    carat_error e = {0};
    carat_expert_info x;
    fidelity_open(&f, "moe");
    const carat_model_options o = {.device = "cpu", .experts_gpu = "auto", .experts_cpu = "auto"};
    CHECK_OK(carat_model_open(fidelity_write(&f, NULL), &o, &m, &e), e);
    CHECK(!carat_experts(m, &x));
    CHECK_EQ(x.n_slots, 0);
    CHECK_EQ(x.cpu_threads, 0);
}
