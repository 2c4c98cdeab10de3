/* inspect_vision.c - the part of `carat inspect` for mmproj files: what a picture costs, and sound.
 */
#include "apps/inspect_int.h"
#include "apps/term.h"
#include "base/map.h"
#include "base/mem.h"
#include "image/image.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { FILE_MOST = 1 << 28 };

static status read_head(image_head *h, const char *path, err *e)
{
    char *bytes = NULL;
    size_t n;
    status st = file_read_all(path, FILE_MOST, &bytes, &n, e);
    if (!st)
        st = image_head_read(h, bytes, n, path, e);
    mem_free(bytes);
    return st;
}

/* The budgets that Gemma 4 was trained with, and a picture's own size; or the one asked for. */
static void add_costs(inspect_vision *v, const char *name, int32_t tokens)
{
    static const int32_t usual[INSPECT_COSTS] = {70, 140, 280, 560, 1120, 0};
    const int32_t asked = tokens == CARAT_IMAGE_NATIVE ? 0 : tokens,
                  *budget = tokens ? &asked : usual;
    for (int i = 0; i < (tokens ? 1 : INSPECT_COSTS) && !v->why_not.status; i++) {
        image_rule rule;
        inspect_cost *c = &v->cost[v->n_costs];
        if (vision_grid(&v->core, budget[i], v->width, v->height, &rule, &c->grid, name,
                        &v->why_not))
            return;
        double n = c->grid.n_patches, layers = v->core.n_layer, width = v->core.n_embd;
        c->budget = budget[i];
        c->tflop = (2 * n * (double)v->core.n_params_active + 4 * n * n * width * layers) * 1e-12;
        v->n_costs++;
    }
}

static void open_ears(inspect_vision *v, const char *path)
{
    gguf own = {0};
    if (gguf_open(&own, path, false, NULL, NULL, &v->deaf))
        return;
    if (!audio_in_file(&own))
        gguf_close(&own);
    else if (!model_bind_audio(&v->ears, &own, &v->deaf))
        v->hears = audio_of(&v->ears);
}

bool inspect_is_tower(const gguf *g)
{
    gguf_string arch;
    return gguf_get_string(g, "general.architecture", &arch) && arch.n == 4 &&
           !memcmp(arch.at, "clip", 4);
}

status inspect_vision_open(inspect_vision *v, const char *path, const inspect_picture *picture,
                           err *e)
{
    gguf own = {0};
    image_head h = {.width = 1920, .height = 1080};
    status st;
    if (picture->file && (st = read_head(&h, picture->file, e)))
        return st;
    v->width = h.width;
    v->height = h.height;
    open_ears(v, path);
    if (gguf_open(&own, path, false, NULL, NULL, &v->why_not) ||
        model_bind(&v->core, &own, &v->why_not))
        return OK; /* why_not says so */
    v->tower = vision_of(&v->core);
    add_costs(v, picture->file ? picture->file : "a picture", picture->tokens);
    return picture->file && v->why_not.status ? err_set(e, v->why_not.status, "%s", v->why_not.text)
                                              : OK;
}

void inspect_vision_close(inspect_vision *v)
{
    model_free(&v->core);
    model_free(&v->ears);
}

/* Of a picture's soft tokens, which are kept in host memory. */
static int64_t row_bytes(const inspect_vision *v, const inspect_cost *c)
{
    return (int64_t)((size_t)c->grid.n_tokens * vision_width(v->tower) * sizeof(float));
}

/* Soft tokens of the longest sound that is heard at a time. */
static int32_t most_tokens(const inspect_vision *v)
{
    int32_t n = 0;
    audio_tokens(&v->ears, CARAT_SOUND_PIECE_SECONDS * CARAT_SOUND_RATE, &n, NULL);
    return n;
}

static void put_ears(const inspect_vision *v)
{
    if (!v->hears && !v->deaf.status)
        return;
    puts("\nSounds");
    if (!v->hears) {
        fputs("  not readable: ", stdout);
        term_put(stdout, v->deaf.text, strlen(v->deaf.text));
        putchar('\n');
        return;
    }
    printf("  tower %s: %" PRId32 " layers of width %" PRId32 "\n", v->hears->projector,
           v->ears.n_layer, v->ears.n_embd);
    printf("  %" PRId32 " tokens for the %d seconds that are heard at a time\n", most_tokens(v),
           CARAT_SOUND_PIECE_SECONDS);
}

json_t *inspect_audio_json(const inspect_vision *v)
{
    if (!v->hears)
        return v->deaf.status ? json_pack("{s:o}", "problem",
                                          json_lossy_text(v->deaf.text, strlen(v->deaf.text)))
                              : json_null();
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "projector", v->hears->projector, "layers",
                     (int)v->ears.n_layer, "width", (int)v->ears.n_embd, "embedding",
                     (int)v->hears->n_out, "seconds", (int)CARAT_SOUND_PIECE_SECONDS, "tokens",
                     (int)most_tokens(v));
}

static void put_eyes(const inspect_vision *v)
{
    const vision *t = v->tower;
    char budget[16];
    puts("\nPictures");
    if (!t) {
        fputs("  not readable: ", stdout);
        term_put(stdout, v->why_not.text, strlen(v->why_not.text));
        putchar('\n');
        return;
    }
    if (!v->is_tower) {
        fputs("  file ", stdout);
        term_put_name(stdout, v->core.file.path, strlen(v->core.file.path), 0);
        putchar('\n');
    }
    printf("  tower %s: %" PRId32 " layers of width %" PRId32 ", patches of %" PRId32
           " pixels, %" PRId32 " x %" PRId32 " of them a token\n",
           t->projector, v->core.n_layer, v->core.n_embd, t->rule.patch, t->rule.merge,
           t->rule.merge);
    printf("  embeddings of width %" PRId32 ", for text models of that width\n", t->n_out);
    if (t->n_deep)
        printf("  deepstack: as many again for each of the first %" PRId32
               " layers of the text model\n",
               t->n_deep);
    printf("  a picture of %" PRId32 " x %" PRId32 " pixels\n", v->width, v->height);
    printf("    %-8s %8s %8s %14s %10s %10s\n", "budget", "tokens", "patches", "resized to",
           "TFLOP", "MiB");
    for (int32_t i = 0; i < v->n_costs; i++) {
        const inspect_cost *c = &v->cost[i];
        char size[32];
        snprintf(budget, sizeof budget, c->budget ? "%" PRId32 : "native", c->budget);
        snprintf(size, sizeof size, "%" PRId32 " x %" PRId32, c->grid.width, c->grid.height);
        printf("    %-8s %8" PRId32 " %8" PRId32 " %14s %10.3g %10.2f\n", budget, c->grid.n_tokens,
               c->grid.n_patches, size, c->tflop, (double)row_bytes(v, c) * 0x1p-20);
    }
}

void inspect_vision_put(const inspect_vision *v)
{
    put_eyes(v);
    put_ears(v);
}

json_t *inspect_vision_json(const inspect_vision *v)
{
    const vision *t = v->tower;
    json_t *costs;
    if (!v->is_tower && !t)
        return json_null();
    if (!t)
        return json_pack("{s:o}", "problem",
                         json_lossy_text(v->why_not.text, strlen(v->why_not.text)));
    costs = json_array();
    for (int32_t i = 0; i < v->n_costs; i++) {
        const inspect_cost *c = &v->cost[i];
        json_array_append_new(
            costs, json_pack("{s:o, s:i, s:i, s:i, s:i, s:f, s:I}", "budget",
                             c->budget ? json_integer(c->budget) : json_string("native"), "tokens",
                             (int)c->grid.n_tokens, "patches", (int)c->grid.n_patches, "width",
                             (int)c->grid.width, "height", (int)c->grid.height, "tflop", c->tflop,
                             "bytes", (json_int_t)row_bytes(v, c)));
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "projector",
                     t->projector, "layers", (int)v->core.n_layer, "width", (int)v->core.n_embd,
                     "patch", (int)t->rule.patch, "merge", (int)t->rule.merge, "embedding",
                     (int)t->n_out, "deepstack", (int)t->n_deep, "picture_width", (int)v->width,
                     "picture_height", (int)v->height, "costs", costs);
}
