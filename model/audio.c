/* audio.c - see audio.h: which tower a file has, and a sound through one, in a pass of all rows. */
#include "model/audio.h"
#include "base/mem.h"
#include "model/bind.h"
#include "model/tower_int.h"
#include "sound/sound.h"

#include <math.h>
#include <string.h>

static const audio_arch *const towers[] = {&gemma4a_audio, &gemma4ua_audio};
enum { N_TOWERS = sizeof towers / sizeof *towers };

const audio *audio_of(const model *m)
{
    return m->arch == &clip_audio_arch ? m->impl : NULL;
}

bool audio_in_file(const gguf *g)
{
    bool has = false;
    return gguf_get_bool(g, "clip.has_audio_encoder", &has) && has;
}

/* ---- Binding ---- */

static status bind_audio(model *m, err *e)
{
    gguf_string s = {"", 0};
    if (!audio_in_file(&m->file))
        return err_set(e, E_UNSUPPORTED, "%s: has no audio tower (clip.has_audio_encoder)",
                       m->file.path);
    if (!gguf_get_string(&m->file, "clip.audio.projector_type", &s))
        return err_set(e, E_FORMAT, "%s: key clip.audio.projector_type is missing or no text",
                       m->file.path);
    for (uint64_t i = 0; i < m->file.tensors.n; i++) {
        const char *name = m->file.tensors.at[i].name;
        m->claimed[i] |= strncmp(name, "a.", 2) && strncmp(name, "mm.a.", 5); /* for pictures */
    }
    for (int i = 0; i < N_TOWERS; i++)
        if (s.n == strlen(towers[i]->projector) && !memcmp(s.at, towers[i]->projector, s.n))
            return towers[i]->bind(m, e);
    return err_set(e, E_UNSUPPORTED,
                   "%s: the audio tower '%.*s' is not supported (these are: gemma4a, gemma4ua)",
                   m->file.path, (int)(s.n < 64 ? s.n : 64), s.at);
}

const model_arch clip_audio_arch = {
    .name = "clip", .tower = true, .prefix = "a.", .bind = bind_audio};

int32_t audio_list_with(const model_shape *s, const model_shape *ears, shape_tensor *out,
                        int32_t cap)
{
    int32_t n = table_list(s, out, cap);
    if (!ears->family)
        return n;
    return n + table_list(ears, n < cap ? out + n : NULL, n < cap ? cap - n : 0);
}

void audio_put_with(gguf_writer *w, const model_shape *s, const model_shape *ears)
{
    table_put(w, s);
    if (ears->family)
        table_put_keys(w, "clip", ears);
}

void audio_put(gguf_writer *w, const char *projector)
{
    gguf_put_bool(w, "clip.has_audio_encoder", true);
    gguf_put_string(w, "clip.audio.projector_type", projector, strlen(projector));
}

status audio_done(model *m, const model_shape *s, audio *a, const audio_arch *arch, err *e)
{
    a->arch = arch;
    a->projector = arch->projector;
    m->n_kv = 0;
    return bind_done(m, s, a, NULL, NULL, e);
}

bool audio_goes_on(pass *p, const model *m, int32_t il)
{
    p->il = il;
    if (!p->dry && !pass_failed(p) && m->progress &&
        !m->progress(m->progress_user, "layers of a sound's tower", (uint64_t)il,
                     (uint64_t)m->n_layer))
        err_set(&p->e, E_CANCELLED, "interrupted in layer %d of the audio tower", il);
    return !pass_failed(p);
}

/* ---- Sounds ---- */

status audio_tokens(const model *m, int64_t n_samples, int32_t *n, err *e)
{
    const audio_arch *a = audio_of(m)->arch;
    if (n_samples > AUDIO_SECONDS_MAX * SOUND_RATE)
        return err_set(e, E_LIMIT, "a sound of %.1f seconds; a model hears at most %d at a time",
                       (double)n_samples / SOUND_RATE, AUDIO_SECONDS_MAX);
    int64_t rows = a->n_rows(n_samples);
    if (rows < 1)
        return err_set(e, E_LIMIT, "a sound of %d milliseconds, which is too short",
                       (int)(n_samples > 0 ? n_samples * 1000 / SOUND_RATE : 0));
    *n = (int32_t)a->n_tokens(rows);
    return OK;
}

size_t audio_feature_count(const model *m, int64_t n_samples)
{
    const audio_arch *a = audio_of(m)->arch;
    return (size_t)a->n_rows(n_samples) * (size_t)a->n_in;
}

void audio_features(const model *m, float *out, const float *x, int64_t n_samples)
{
    audio_of(m)->arch->features(out, x, n_samples);
}

/* ---- Passes ---- */

static audio_input input_of(const audio *a, int64_t n_samples, const float *features,
                            const float *places)
{
    return (audio_input){
        .rows = tower_mat(features, (int32_t)a->arch->n_rows(n_samples), a->arch->n_in),
        .places = tower_mat(places, a->n_near, a->n_embd)};
}

/* Ops of audio towers ask nothing of the step's rows, so it has one. */
static step step_of(void)
{
    static const int32_t zero[1];
    rowset one = {.n = 1, .token = zero, .pos = zero, .seq = zero};
    for (int k = 0; k < STORE_KINDS; k++)
        one.keys[k] = (row_keys){zero, zero, zero, zero};
    return (step){.prompt = true, .all = one, .n_seqs = 1};
}

size_t audio_room(const audio_memory *n)
{
    return tower_align(n->scratch_bytes) + n->input_bytes;
}

status audio_plan(const model *m, device *dev, int64_t n_samples, audio_memory *need, err *e)
{
    const audio *a = audio_of(m);
    const step s = step_of();
    int32_t n;
    pass p;
    status st = audio_tokens(m, n_samples, &n, e);
    if (st)
        return st;
    const audio_input in = input_of(a, n_samples, NULL, NULL);
    pass_begin(&p, dev, &s, NULL, 0);
    a->arch->forward(&p, m, &in);
    pass_end(&p);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s: %s", m->file.path, p.e.text);
    *need = (audio_memory){.scratch_bytes = p.side[PASS_MAIN].peak};
    if (!dev->host_memory)
        need->input_bytes = tower_mat_bytes(in.rows) + tower_mat_bytes(in.places);
    return OK;
}

static status run(const model *m, device *dev, const audio_memory *need, char *room, audio_input in,
                  float *soft, err *e)
{
    const step s = step_of();
    char *inputs = room + tower_align(need->scratch_bytes);
    pass p;
    if (need->input_bytes) {
        in.rows = tower_placed(dev, &inputs, in.rows);
        in.places = tower_placed(dev, &inputs, in.places);
    }
    pass_begin(&p, dev, &s, room, need->scratch_bytes);
    mat y = audio_of(m)->arch->forward(&p, m, &in);
    pass_end(&p);
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    dev->download(dev, soft, y.at, tower_mat_bytes(y));
    return dev->failed ? dev->failed(dev, e) : OK;
}

/* Sines and cosines of distances, by frequencies from 1 to 1e-4. */
static float *make_places(const audio *a)
{
    int32_t half = a->n_embd / 2;
    float *x = mem_calloc((size_t)a->n_near * (size_t)a->n_embd, sizeof *x);
    double fall = half > 1 ? log(1e4) / (half - 1) : 0;
    for (int32_t d = 0; d < a->n_near && x; d++)
        for (int32_t i = 0; i < half; i++) {
            double angle = d * (double)(float)exp(-fall * i); /* the reference's are floats */
            x[d * a->n_embd + i] = (float)sin(angle);
            x[d * a->n_embd + half + i] = (float)cos(angle);
        }
    return x;
}

status audio_encode(const model *m, device *dev, const float *features, int64_t n_samples,
                    void *room, size_t room_bytes, float *soft, err *e)
{
    const audio *a = audio_of(m);
    audio_memory need;
    float *places = NULL;
    status st = audio_plan(m, dev, n_samples, &need, e);
    if (st)
        return st;
    if (audio_room(&need) > room_bytes)
        return err_set(e, E_MEMORY, "a sound of %.1f seconds needs %zu bytes, and %zu are planned",
                       (double)n_samples / SOUND_RATE, audio_room(&need), room_bytes);
    if (a->n_near && !(places = make_places(a)))
        return err_memory(e, "a sound", (size_t)a->n_near * (size_t)a->n_embd * sizeof *places);
    st = run(m, dev, &need, room, input_of(a, n_samples, features, places), soft, e);
    mem_free(places);
    return st;
}
