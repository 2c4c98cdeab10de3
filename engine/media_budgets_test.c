/* media_budgets_test.c - soft tokens of pictures of every budget of Gemma 4, against transformers,
 * which pads each picture to its budget.
 */
#include "apps/commands.h"
#include "engine/media.h"
#include "image/image_test_int.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEP = 97, WIDTH = 96, MOST = 1120 }; /* STEP: as tools/vision_fixture.py has it */

static carat_model *open_tower(const char *size)
{
    const char *tower = test_temp("tower.gguf");
    const char *make[] = {size, tower, "--type", "f32"};
    const carat_model_options o = {.n_threads = 2, .exact_f32 = true, .mmproj = tower};
    carat_model *m;
    err e = {0};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    CHECK_OK(carat_model_open(toy_model_write(&(toy_model_file){.base = "dense"}), &o, &m, &e), e);
    CHECK_EQ(m->core.n_embd, WIDTH);
    return m;
}

/* The largest distance of every STEP-th token from the next ones of the file. */
static double distance(const float *rows, int32_t n, FILE *want)
{
    float row[WIDTH];
    double worst = 0;
    for (int32_t r = 0; r < n; r += STEP) {
        CHECK_EQ(fread(row, sizeof *row, WIDTH, want), WIDTH);
        for (int32_t c = 0; c < WIDTH; c++) {
            double apart = fabs((double)rows[r * WIDTH + c] - row[c]);
            worst = apart > worst || isnan(apart) ? apart : worst;
        }
    }
    return worst;
}

/* The cases of budgets from `least` to `most`; others are passed over. */
static void compare(int32_t least, int32_t most)
{
    FILE *lines = fopen(test_path("tests/data/images/budgets.txt"), "r"),
         *values = fopen(test_path("tests/data/images/budgets.f32"), "rb");
    char size[32], open[32] = "";
    int32_t budget, seed, w, h, n, width, n_cases = 0;
    carat_model *m = NULL;
    CHECK(lines && values);
    while (fscanf(lines, "%31s %d %d %d %d %d %d", size, &budget, &seed, &w, &h, &n, &width) == 7) {
        const carat_image_options o = {.n_tokens = budget};
        int32_t ids[MOST];
        carat_media *x;
        image picture;
        soft_run run;
        err e = {0};
        CHECK(n <= MOST && width == WIDTH);
        if (budget < least || budget > most) {
            CHECK(!fseek(values, (n + STEP - 1) / STEP * WIDTH * (long)sizeof(float), SEEK_CUR));
            continue;
        }
        if (strcmp(size, open) != 0) {
            carat_model_close(m);
            m = open_tower(size);
            memcpy(open, size, sizeof open);
        }
        test_picture(&picture, seed, w, h);
        CHECK_OK(carat_image_new(m, picture.rgb, w, h, &o, &x, &e), e);
        CHECK_EQ(carat_media_n(x), n);
        for (int32_t k = 0; k < n; k++)
            ids[k] = carat_media_id(x) - k;
        media_item *held;
        int32_t n_held = 1;
        CHECK_OK(media_rows(m, ids, n, &run, &held, &e), e);
        CHECK_EQ(run.n, n);
        double apart = distance(run.at, n, values);
        CHECK_MSG(apart <= 3e-5, "%s, budget %d: a value is %g apart", size, budget, apart);
        media_leave(m, &held, &n_held);
        carat_media_free(x);
        image_free(&picture);
        n_cases++;
    }
    CHECK(n_cases % 3 == 0 && n_cases && fgetc(values) == EOF);
    carat_model_close(m);
    fclose(lines);
    fclose(values);
}

TEST(media_budgets_are_those_of_transformers)
{
    compare(70, test_brief() ? 140 : 280);
}

/* Ten thousand patches that see each other. */
LONG_TEST(media_large_budgets_are_those_of_transformers)
{
    compare(560, 1120);
}
