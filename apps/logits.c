/* logits.c - `carat logits`: the logits of given tokens, for comparison with other programs.
 *
 * Ids in (int32, little-endian), logits out (f32, little-endian, [n_tokens, n_vocab]). The output
 * is written chunk by chunk, so memory holds one chunk of logits, and appears under its name when
 * it is complete.
 */
#include "apps/commands.h"
#include "apps/ids.h"
#include "apps/device_options.h"
#include "apps/kv_options.h"
#include "apps/lora_options.h"
#include "apps/media/soft.h"
#include "apps/mmproj_options.h"
#include "apps/named.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"

#include <string.h>

enum { LOGITS_CHUNK_BYTES = 256 << 20 }; /* of one chunk's logits, when no --chunk is given */

typedef struct logits_options {
    const char *model, *tokens, *out, *isa, *wrap, *repack;
    mmproj_options mmproj;
    lora_options lora;
    option_list images, sounds;
    kv_options kv;
    device_options where;
    int64_t chunk, threads;
    bool all, last, exact, reference;
} logits_options;

static const option table[] = {
    OPT_STR(logits_options, model, "model", 'm', "FILE",
            "a GGUF file, or the name of a model (carat list)"),
    OPT_STR(
        logits_options, tokens, "tokens", 0, "FILE",
        "token ids: a file, int32 little-endian or numbers with commas between, or the numbers"),
    OPT_STR(logits_options, out, "output", 'o', "FILE", "logits, f32 little-endian"),
    OPT_LORA(logits_options),
    OPT_MMPROJ(logits_options),
    OPT_LIST(logits_options, images, "image", 0, "FILE",
             "a picture, for the next token <|image|>, of Qwen <|image_pad|>; may be repeated"),
    OPT_LIST(logits_options, sounds, "audio", 0, "FILE",
             "a sound, for the next token <|audio|>; may be repeated"),
    OPT_FLAG(logits_options, all, "all", 0, "logits of every token (the default)"),
    OPT_FLAG(logits_options, last, "last", 0, "logits of the last token only"),
    OPT_INT(logits_options, chunk, "chunk", 0, "N", 1, 1 << 24, "tokens per pass"),
    OPT_THREADS(logits_options),
    OPT_KV(logits_options),
    OPT_EXACT(logits_options),
    OPT_REFERENCE(logits_options),
    OPT_DEVICE(logits_options),
    OPT_REPACK(logits_options),
    OPT_ISA(logits_options),
    OPT_WRAP(logits_options),
    OPT_END};

static carat_status write_rows(file_out *f, const float *x, size_t n, carat_error *e)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return file_out_write(f, x, n * sizeof *x, e);
#else
#error "carat logits writes the host's floats as they are, which must be little-endian"
#endif
}

/* Tokens in, rows out. */
typedef struct evaluation {
    carat_session *s;
    int32_t *ids; /* [n] */
    int64_t n;
    int32_t n_vocab;
    bool last;  /* only the last token's row */
    float *row; /* [n_vocab] */
    file_out out;
    carat_error e; /* of take_rows */
} evaluation;

static bool take_rows(void *user, int64_t first, int64_t n, const float *rows)
{
    evaluation *v = user;
    if (!term_progress(NULL, "tokens", (uint64_t)first, (uint64_t)v->n))
        return err_set(&v->e, E_CANCELLED, "interrupted after %lld tokens", (long long)first),
               false;
    return !write_rows(&v->out, rows, (size_t)n * (size_t)v->n_vocab, &v->e);
}

static carat_status evaluate_ids(evaluation *v, carat_error *e)
{
    status st;
    if (v->last) {
        if ((st = carat_eval(v->s, v->ids, v->n, v->row, NULL, e)))
            return st;
        return write_rows(&v->out, v->row, (size_t)v->n_vocab, e);
    }
    st = carat_eval_rows(v->s, v->ids, v->n, take_rows, v, e);
    if (st && v->e.status) {
        err_clear(e);
        return err_set(e, v->e.status, "%s", v->e.text);
    }
    return st;
}

/* Puts the pictures and sounds where the ids have places for them. media: [PICTURES_MAX], the
 * caller's. */
static carat_status place_pictures(evaluation *v, carat_model *m, const logits_options *o,
                                   carat_media **media, carat_error *e)
{
    pictures list = {0};
    int32_t number[PICTURES_MAX], *ids, bad;
    int32_t eye = carat_image_token(m), ear = carat_sound_token(m);
    int n = 0, seen = 0, heard = o->images.n, n_files = o->images.n + o->sounds.n;
    status st = OK;
    for (int i = 0; i < n_files && !st; i++)
        st = pictures_add_file(
            &list, i < o->images.n ? o->images.at[i] : o->sounds.at[i - o->images.n], e);
    /* A placeholder takes the next file of its kind. */
    for (int64_t i = 0; i < v->n && n < n_files; i++) {
        if (v->ids[i] >= 0 && v->ids[i] == eye && seen < o->images.n)
            number[n++] = seen++;
        else if (v->ids[i] >= 0 && v->ids[i] == ear && heard < n_files)
            number[n++] = heard++;
    }
    if (!st && n < n_files)
        st = err_set(e, E_ARG, "the tokens have places for %d of %d pictures and sounds", n,
                     n_files);
    if (!st)
        st = pictures_place(&list, m, media, (picture_places){number, n, 0}, v->ids, v->n, &ids,
                            &v->n, &bad, e);
    pictures_free(&list);
    if (st)
        return st;
    mem_free(v->ids);
    v->ids = ids;
    return OK;
}

static void write_log(void *user, const char *text)
{
    (void)user;
    term_put(stderr, text, strlen(text));
}

static int run_logits(const command *c, int argc, char **argv)
{
    logits_options o = {0};
    int n_operands, bad = options_parse(c, argc, argv, &o, &n_operands);
    carat_error e = {0};
    carat_model *m = NULL;
    carat_media *media[PICTURES_MAX] = {0};
    evaluation v = {0};
    lora_files loras = {0};
    status st;

    if (bad)
        return bad - 1;
    if (!o.model || !o.tokens || !o.out || (o.all && o.last))
        return fprintf(stderr, "carat logits: %s\nTry 'carat logits --help'.\n",
                       o.all && o.last ? "--all and --last exclude each other"
                                       : "needs --model, --tokens and --output"),
               2;
    if (o.images.n + o.sounds.n > PICTURES_MAX)
        return fprintf(stderr, "carat logits: %d pictures and sounds, at most %d\n",
                       o.images.n + o.sounds.n, PICTURES_MAX),
               2;
    term_init();
    term_watch(NULL);
    double start_ms = clock_ms();
    if ((st = ids_read(o.tokens, &v.ids, &v.n, &e)))
        goto out;
    carat_model_options mo = {.n_threads = (int32_t)o.threads,
                              .exact_f32 = o.exact,
                              .reference = o.reference,
                              .isa = o.isa,
                              .wrap = o.wrap,
                              .progress = term_progress,
                              .log = write_log};
    device_options_apply(&o.where, &mo);
    if ((st = mmproj_options_apply(&o.mmproj, &mo, &e)) ||
        (st = lora_options_apply(&o.lora, &loras, &mo, &e)))
        goto out;
    if (!o.images.n && !o.sounds.n && !o.mmproj.file) /* a tower has nothing to see */
        mo.mmproj = NULL;
    if ((st = options_repack(o.repack, &mo.no_repack, &e)) ||
        (st = named_open(o.model, &mo, &m, &e)))
        goto out;
    if (o.images.n + o.sounds.n && (st = place_pictures(&v, m, &o, media, &e)))
        goto out;
    carat_model_info info;
    carat_model_get_info(m, &info);
    int64_t chunk = o.chunk, fit = LOGITS_CHUNK_BYTES / ((int64_t)info.n_vocab * 4);
    if (!chunk)
        chunk = fit < 1 ? 1 : fit < 512 ? fit : 512;
    chunk = chunk < v.n ? chunk : v.n;
    v.n_vocab = info.n_vocab;
    v.last = o.last;
    carat_session_options so = {.n_ctx = (int32_t)v.n,
                                .chunk = (int32_t)chunk,
                                .n_outputs = o.last ? 1 : (int32_t)chunk,
                                .checkpoint_mb = -1};
    kv_options_apply_exact(&o.kv, &so);
    if ((st = carat_session_open(m, &so, &v.s, &e)))
        goto out;
    term_watch(v.s);
    v.row = mem_calloc((size_t)info.n_vocab, sizeof *v.row);
    if (!v.row) {
        st = err_memory(&e, "the logits of a token", (size_t)info.n_vocab * sizeof *v.row);
        goto out;
    }
    if ((st = file_out_open(&v.out, o.out, &e)))
        goto out;
    if ((st = evaluate_ids(&v, &e)))
        goto out;
    if ((st = file_out_commit(&v.out, &e)))
        goto out;
    term_note("%lld tokens in %.2f s on %s", (long long)v.n, (clock_ms() - start_ms) * 1e-3,
              info.device);
out:
    term_watch(NULL);
    if (v.out.path)
        file_out_discard(&v.out);
    mem_free(v.row);
    carat_session_close(v.s);
    for (int i = 0; i < PICTURES_MAX; i++)
        carat_media_free(media[i]);
    carat_model_close(m);
    lora_files_free(&loras);
    mem_free(v.ids);
    return term_exit(st, &e);
}

const command command_logits = {
    .name = "logits",
    .operands = "",
    .summary = "Write the logits of given tokens to a file",
    .about = "Reads token ids (int32, little-endian), computes the model over them and writes the\n"
             "logits (f32, little-endian, one row of the vocabulary per token). The output file\n"
             "appears only when it is complete.\n\n"
             "--exact and --reference are for comparing with other engines; --chunk changes how\n"
             "many tokens one pass computes and must not change the result.",
    .options = table,
    .run = run_logits};
