/* media.c - see media.h. */
#include "base/mem.h"
#include "engine/media_int.h"
#include "model/gemma4.h"

#include <stdio.h>
#include <string.h>

enum { BUCKETS = 4096 }; /* of items by their keys */

/* ---- The towers ----------------------------------------------------------------------------- */

static status check_family(const carat_model *m, err *e)
{
    const model *t = &m->media->tower, *c = &m->core;
    const vision *v = vision_of(t);
    if (!v)
        return err_set(e, E_UNSUPPORTED, "%s is no vision tower (--mmproj)", t->file.path);
    if (v->n_out != c->n_embd)
        return err_set(e, E_UNSUPPORTED,
                       "%s makes embeddings of %d numbers, and %s has embeddings of %d: it is the "
                       "vision tower of another model",
                       t->file.path, v->n_out, c->name, c->n_embd);
    if (v->n_deep != c->n_deep)
        return err_set(
            e, E_UNSUPPORTED,
            "%s has deepstack for %d layers of the text model, and %s takes it in %d: it "
            "is the vision tower of another model",
            t->file.path, v->n_deep, c->name, c->n_deep);
    bool gemma = !strncmp(v->projector, "gemma4", 6);
    if (gemma ? c->arch != &gemma4_arch : !c->turns_by_axes)
        return err_set(e, E_UNSUPPORTED,
                       "%s: pictures for the architecture %s, by the tower '%s', are not computed "
                       "yet",
                       t->file.path, c->arch->name, v->projector);
    return OK;
}

/* A picture of the most tokens. Memory depends on their number alone, not on the picture's sides.
 */
static image_grid largest(const model *tower)
{
    int32_t merge = vision_of(tower)->rule.merge;
    return (image_grid){.cols = merge,
                        .rows = merge,
                        .n_patches = VISION_BUDGET_MAX * merge * merge,
                        .n_tokens = VISION_BUDGET_MAX};
}

static int32_t token_of(const carat_model *m, const char *text)
{
    return m->text ? vocab_find(m->text, text, strlen(text)) : -1;
}

int32_t media_picture_token(const carat_model *m, int which)
{
    static const char *const gemma[] = {"<|image>", "<|image|>", "<image|>"};
    static const char *const qwen[] = {"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"};
    if (m->core.arch != &gemma4_arch && !m->core.turns_by_axes)
        return -1;
    return token_of(m, (m->core.turns_by_axes ? qwen : gemma)[which]);
}

/* What passes need to know of pictures' rows. Two-way is Gemma 4 without per-layer embeddings; its
 * files do not say so. Layers with windows alone. */
static void prepare_passes(carat_model *m)
{
    m->core.axes = m->core.turns_by_axes;
    if (m->core.axes)
        return;
    m->media->two_way = !((const gemma4 *)m->core.impl)->n_ple;
    for (int32_t i = 0; i < m->core.n_kv && m->media->two_way; i++)
        if (m->core.kv[i].window)
            m->core.kv[i].inside = KV_INSIDE_BLOCKS;
}

status media_file(gguf *g, const carat_model_options *opt, bool direct, err *e)
{
    const carat_bytes *b = opt->mmproj_bytes;
    return b ? gguf_open_bytes(g, b->at, b->n, b->name, e)
             : gguf_open(g, opt->mmproj, direct, NULL, NULL, e);
}

status media_open(carat_model *m, const carat_model_options *opt, err *e)
{
    gguf g = {0};
    status st;
    bool native = opt->image_tokens == CARAT_IMAGE_NATIVE;
    if (opt->image_tokens && !native &&
        (opt->image_tokens < VISION_BUDGET_MIN || opt->image_tokens > VISION_BUDGET_MAX))
        return err_set(e, E_ARG, "%d tokens of a picture: expected %d to %d (--image-tokens)",
                       opt->image_tokens, VISION_BUDGET_MIN, VISION_BUDGET_MAX);
    if (!opt->mmproj && !opt->mmproj_bytes)
        return OK;
    media *x = m->media = mem_calloc(1, sizeof *x);
    if (!x)
        return err_memory(e, "a vision tower", sizeof *x);
    pthread_mutex_init(&x->lock, NULL);
    pthread_mutex_init(&x->work, NULL);
    pthread_cond_init(&x->more, NULL);
    atomic_init(&x->n_ids, 0);
    x->most = MEDIA_MOST_BYTES;
    x->n_known_max = MEDIA_ITEMS;
    x->bucket = mem_calloc(BUCKETS, sizeof(media_item *));
    if (!x->bucket)
        return err_memory(e, "pictures", BUCKETS * sizeof(media_item *));
    x->budget = native ? 0 : opt->image_tokens ? opt->image_tokens : VISION_BUDGET;
    x->begin = media_picture_token(m, 0);
    x->place = media_picture_token(m, 1);
    x->end = media_picture_token(m, 2);
    x->cpu = cpu_wanted(opt);
    snprintf(x->isa, sizeof x->isa, "%s", opt->isa ? opt->isa : "");
    x->cpu.isa = opt->isa ? x->isa : NULL; /* opt may be gone when the device is opened */
    x->cpu.nice = MEDIA_NICE;
    if ((st = media_file(&g, opt, opt->no_mmap, e)) || (st = model_bind(&x->tower, &g, e)) ||
        (st = check_family(m, e)))
        return st;
    prepare_passes(m);
    x->tower.progress = m->progress;
    x->tower.progress_user = m->progress_user;
    return ears_open(&x->ears, m, opt, e);
}

/* Wrapped devices (--wrap) see towers too, so they have no other. */
static status choose_device(carat_model *m, err *e)
{
    media *x = m->media;
    bool apart = m->dev->host_memory && device_bare(m->dev) == m->dev;
    status st = apart && !x->own ? device_open_cpu(&x->own, &x->cpu, e) : OK;
    device *dev = x->own ? x->own : m->dev;
    if (x->dev != dev) /* else a tower may be at work there */
        x->dev = dev;
    return st;
}

/* What towers need of the device. They work one after the other, in one room. */
typedef struct media_needs {
    uint64_t vision_weights, audio_weights;
    size_t picture, sound; /* rooms */
} media_needs;

static status plan_towers(const media *x, media_needs *out, err *e)
{
    const image_grid g = largest(&x->tower);
    vision_memory picture;
    media_needs n = {0};
    status st = vision_plan(&x->tower, x->dev, &g, &picture, e);
    if (st || (st = ears_plan(&x->ears, x->dev, &n.audio_weights, &n.sound, e)))
        return st;
    n.vision_weights = plan_weight_bytes(x->dev, &x->tower);
    n.picture = vision_room(&picture);
    *out = n;
    return OK;
}

static status open_room(carat_model *m, err *e)
{
    media *x = m->media;
    media_needs n;
    status st = plan_towers(x, &n, e);
    if (st)
        return st;
    x->room_bytes = n.picture > n.sound ? n.picture : n.sound;
    x->room = x->dev->alloc(x->dev, x->room_bytes);
    return x->room ? OK : err_memory(e, "a picture or sound in its tower", x->room_bytes);
}

static void close_room(carat_model *m)
{
    media *x = m->media;
    if (x->room)
        x->dev->release(x->dev, x->room, x->room_bytes);
    x->room = NULL;
}

status media_load(carat_model *m, const carat_model_options *opt, err *e)
{
    media *x = m->media;
    status st = x ? choose_device(m, e) : OK;
    if (st || !x)
        return st;
    st = model_load(&x->tower, x->dev, opt->progress, opt->progress_user, e);
    x->loaded = !st;
    return st || (st = open_room(m, e)) ? st : ears_load(&x->ears, x->dev, opt, e);
}

void media_unload_weights(carat_model *m)
{
    media *x = m->media;
    if (!x)
        return;
    pthread_mutex_lock(&x->work);
    close_room(m);
    ears_unload_weights(&x->ears);
    if (x->loaded)
        model_unload_weights(&x->tower);
    x->loaded = false;
    pthread_mutex_unlock(&x->work);
}

status media_load_weights(carat_model *m, err *e)
{
    media *x = m->media;
    if (!x)
        return OK;
    pthread_mutex_lock(&x->work);
    status st = model_load_weights(&x->tower, m->progress, m->progress_user, e);
    x->loaded = !st;
    st = st || (st = open_room(m, e)) ? st : ears_load_weights(&x->ears, m, e);
    pthread_mutex_unlock(&x->work);
    return st;
}

void media_close(carat_model *m)
{
    media *x = m->media;
    if (!x)
        return;
    media_end_work(x);
    for (media_item *it; (it = x->known);) {
        x->known = it->next_known;
        mem_free(it->patches);
        mem_free(it->making);
        mem_free(it->rows);
        mem_free(it->why);
        mem_free(it);
    }
    mem_free(x->bucket);
    mem_free(x->span);
    close_room(m);
    ears_close(&x->ears);
    model_free(&x->tower);
    device_close(x->own);
    pthread_cond_destroy(&x->more);
    pthread_mutex_destroy(&x->work);
    pthread_mutex_destroy(&x->lock);
    mem_free(x);
    m->media = NULL;
}

const char *media_path(const carat_model *m)
{
    return m->media ? m->media->tower.file.path : NULL;
}

const model *media_tower(const carat_model *m)
{
    return m->media ? &m->media->tower : NULL;
}

const model *media_audio_tower(const carat_model *m)
{
    return media_hears(m) ? &m->media->ears.tower : NULL;
}

status media_plan(const carat_model *m, carat_memory_plan *p, err *e)
{
    media *x = m->media;
    media_needs n;
    p->vision_bytes = p->audio_bytes = p->picture_bytes = 0;
    if (!x)
        return OK;
    pthread_mutex_t *lock = (pthread_mutex_t *)&m->pass_lock; /* a wrapped device keeps state */
    pthread_mutex_lock(lock);
    status st = choose_device((carat_model *)m, e);
    st = st ? st : plan_towers(x, &n, e);
    pthread_mutex_unlock(lock);
    if (st)
        return st;
    p->vision_bytes = n.vision_weights + n.picture;
    p->audio_bytes = n.audio_weights + (n.sound > n.picture ? n.sound - n.picture : 0);
    p->picture_bytes = MEDIA_MOST_BYTES;
    return OK;
}

bool media_hears(const carat_model *m)
{
    return m->media && m->media->ears.has;
}

uint64_t media_taken(const carat_model *m)
{
    return m->media && m->media->room ? m->media->room_bytes : 0;
}

/* ---- The registry -------------------------------------------------------------------------- */

void media_limit(carat_model *m, uint64_t most, int32_t n_items)
{
    m->media->most = most;
    m->media->n_known_max = n_items;
}

bool media_has_id(const carat_model *m, int32_t id)
{
    return m->media && id < 0 && -(int64_t)id <= atomic_load(&m->media->n_ids);
}

media_span *media_span_of(const media *x, int32_t id)
{
    int32_t lo = 0, hi = x->n - 1;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        if (x->span[mid].first >= id)
            lo = mid;
        else
            hi = mid - 1;
    }
    return &x->span[lo];
}

/* Keys are hashes already. */
static media_item **bucket_of(const media *x, const char *key)
{
    uint32_t h = 0;
    for (int i = 0; i < 3; i++) /* hexadecimal digits */
        h = 16 * h + (uint32_t)(key[i] <= '9' ? key[i] - '0' : key[i] - 'a' + 10);
    return &x->bucket[h % BUCKETS];
}

static void drop_item_rows(carat_model *m, media_item *it);

/* Forgets the item that was used longest ago among the items that nothing uses. The caller holds
 * the lock. */
static void forget_oldest(carat_model *m)
{
    media *x = m->media;
    media_item **oldest = NULL, **at;
    for (at = &x->known; *at; at = &(*at)->next_known)
        if (!(*at)->n_users && (!oldest || (*at)->used < (*oldest)->used))
            oldest = at;
    if (!oldest)
        return;
    media_item *it = *oldest;
    *oldest = it->next_known;
    for (at = bucket_of(x, it->key); *at != it;)
        at = &(*at)->next;
    *at = it->next;
    x->span[it->span].item = NULL;
    x->n_known--;
    drop_item_rows(m, it);
    mem_free(it->why);
    mem_free(it);
}

/* Adds an item for key: a picture of that grid, or a sound. Under the lock. */
static status add_item(carat_model *m, const char *key, const image_grid *g, const ears_size *sound,
                       media_item **out, err *e)
{
    media *x = m->media;
    int32_t merge = vision_of(&x->tower)->rule.merge;
    int64_t n_ids = atomic_load(&x->n_ids);
    if (n_ids + g->n_tokens > INT32_MAX)
        return err_set(
            e, E_LIMIT,
            "this model has seen and heard as much as it can tell apart: it has to be opened "
            "again");
    if (x->n == x->cap) {
        int32_t cap = x->cap ? 2 * x->cap : 16;
        media_span *more = mem_realloc(x->span, (size_t)cap, sizeof *more);
        if (!more)
            return err_memory(e, "pictures", (size_t)cap * sizeof *more);
        x->span = more;
        x->cap = cap;
    }
    media_item *it = mem_calloc(1, sizeof *it);
    if (!it)
        return err_memory(e, "a picture", sizeof *it);
    while (x->n_known >= x->n_known_max) {
        int32_t before = x->n_known;
        forget_oldest(m);
        if (x->n_known == before) /* all are in use */
            break;
    }
    memcpy(it->key, key, sizeof it->key);
    it->grid = *g;
    it->sound = *sound;
    it->first = (int32_t)(-n_ids - 1);
    it->span = x->n;
    it->next = *bucket_of(x, key);
    *bucket_of(x, key) = it;
    it->next_known = x->known;
    x->known = it;
    x->n_known++;
    x->span[x->n++] = sound->n_pieces ? (media_span){it->first, (uint16_t)g->n_tokens, 0, it}
                                      : (media_span){it->first, (uint16_t)(g->cols / merge),
                                                     (uint16_t)(g->rows / merge), it};
    atomic_store(&x->n_ids, n_ids + g->n_tokens);
    *out = it;
    return OK;
}

/* Bytes of a picture of that grid, or of a sound, before or after the tower, whichever is more. */
static size_t waiting_bytes(const media *x, const image_grid *g, const ears_size *sound)
{
    const vision *v = vision_of(&x->tower);
    size_t patch = 3 * (size_t)v->rule.patch * (size_t)v->rule.patch;
    size_t before =
        sound->n_pieces ? ears_feature_count(&x->ears, sound) : (size_t)g->n_patches * patch;
    size_t after = (size_t)g->n_tokens * vision_width(v);
    bool both = sound->n_pieces > 1; /* its pieces wait while the rows of others are there */
    return (both ? before + after : before > after ? before : after) * sizeof(float);
}

static size_t item_bytes(const media *x, const media_item *it)
{
    return waiting_bytes(x, &it->grid, &it->sound);
}

static status no_room(const media *x, size_t n, err *e)
{
    return err_set(
        e, E_MEMORY,
        "the pictures and sounds of the prompts at work take %.0f MiB of %d: no room for "
        "one of %.0f MiB until some are answered",
        (double)(x->patch_bytes + x->row_bytes) * 0x1p-20, MEDIA_MOST_BYTES >> 20,
        (double)n * 0x1p-20);
}

status media_use(carat_model *m, const char *key, const image_grid *g, const ears_size *sound,
                 media_item **out, bool *has, err *e)
{
    media *x = m->media;
    size_t bytes = waiting_bytes(x, g, sound);
    status st = OK;
    pthread_mutex_lock(&x->lock);
    media_item *it = *bucket_of(x, key);
    while (it && memcmp(it->key, key, sizeof it->key) != 0)
        it = it->next;
    if (!it && x->patch_bytes + bytes > x->most)
        st = no_room(x, bytes, e);
    else if (!it)
        st = add_item(m, key, g, sound, &it, e);
    if (!st) {
        it->n_users++;
        it->used = ++x->clock;
        *has = it->patches || it->rows;
        *out = it;
    }
    pthread_mutex_unlock(&x->lock);
    return st;
}

void media_drop_patches(media *x, media_item *it)
{
    if (it->patches)
        x->patch_bytes -= item_bytes(x, it);
    mem_free(it->patches);
    mem_free(it->making);
    it->patches = it->making = NULL;
    it->n_made = 0;
}

void media_drop_user_locked(media *x, media_item *it)
{
    if (!--it->n_users)
        media_drop_patches(x, it);
}
void media_drop_user(media *x, media_item *it)
{
    pthread_mutex_lock(&x->lock);
    media_drop_user_locked(x, it);
    pthread_mutex_unlock(&x->lock);
}

size_t media_rows_bytes(const carat_model *m, const media_item *it)
{
    size_t width = (size_t)m->core.n_embd * (1 + (size_t)m->core.n_deep);
    return (size_t)it->grid.n_tokens * width * sizeof(float);
}

static void drop_item_rows(carat_model *m, media_item *it)
{
    if (it->rows)
        m->media->row_bytes -= media_rows_bytes(m, it);
    mem_free(it->rows);
    it->rows = NULL;
}

void media_drop_rows(carat_model *m, uint64_t most)
{
    media *x = m->media;
    while (x->row_bytes > most) {
        media_item *oldest = NULL;
        for (media_item *it = x->known; it; it = it->next_known)
            if (it->rows && !it->n_users && (!oldest || it->used < oldest->used))
                oldest = it;
        if (!oldest)
            return;
        drop_item_rows(m, oldest);
    }
}

status media_give(carat_model *m, media_item *it, float **patches, err *e)
{
    media *x = m->media;
    size_t n = item_bytes(x, it);
    status st = OK;
    pthread_mutex_lock(&x->lock);
    if (!it->patches && !it->rows) {
        if (x->patch_bytes + n <= x->most)
            media_drop_rows(m, x->most - x->patch_bytes - n);
        if (x->patch_bytes + x->row_bytes + n > x->most)
            st = no_room(x, n, e);
        else {
            it->patches = *patches;
            *patches = NULL;
            x->patch_bytes += n;
        }
    }
    pthread_mutex_unlock(&x->lock);
    return st;
}

/* ---- Pictures whose tokens see each other ---- */

bool media_two_way(const carat_model *m)
{
    return m->media && m->media->two_way;
}

int32_t media_rows_max(const carat_model *m)
{
    return media_two_way(m) ? VISION_BUDGET_MAX : 0;
}

/* The tokens of a picture from ids[0] on; 0: it is none's, or a sound's. */
static int32_t picture_left(const carat_model *m, const int32_t *ids)
{
    if (!media_has_id(m, ids[0]))
        return 0;
    pthread_mutex_lock(&m->media->lock);
    const media_span *s = media_span_of(m->media, ids[0]);
    int32_t n = s->rows ? (int32_t)s->cols * s->rows - (s->first - ids[0]) : 0;
    pthread_mutex_unlock(&m->media->lock);
    return n;
}

int32_t media_block(const carat_model *m, const int32_t *ids)
{
    return media_two_way(m) ? picture_left(m, ids) : 0;
}

/* Is id, which media_has_id, the first one of its picture? */
static bool media_begins(const carat_model *m, int32_t id)
{
    pthread_mutex_lock(&m->media->lock);
    bool first = media_span_of(m->media, id)->first == id;
    pthread_mutex_unlock(&m->media->lock);
    return first;
}

/* Is ids[at] a token of a picture that begins before it? */
static bool cuts(const carat_model *m, const int32_t *ids, int64_t at)
{
    return at > 0 && ids[at] < 0 && ids[at] == ids[at - 1] - 1 && media_block(m, ids + at - 1) > 1;
}

int64_t media_whole(const carat_model *m, const int32_t *ids, int64_t n, int64_t n_ids)
{
    while (media_two_way(m) && n > 0 && n < n_ids && cuts(m, ids, n))
        n--;
    return n;
}

int32_t media_pass_rows(const carat_model *m, const int32_t *ids, int64_t n, int32_t rows)
{
    int64_t whole = media_whole(m, ids, rows, n);
    if (!whole)
        whole = media_block(m, ids);
    return (int32_t)(whole < n ? whole : n);
}

static status check_lack(const carat_model *m, bool lacks, err *e)
{
    return !lacks ? OK
                  : err_set(e, E_ARG, "a picture of the prompt lacks some of its tokens%s",
                            m->core.axes ? ", and the positions behind it depend on all of them"
                                         : ", which see each other");
}

status media_check(const carat_model *m, int32_t before, const int32_t *ids, int64_t n, err *e)
{
    bool axes = m->core.axes, goes_on = axes && ids[0] < 0 && ids[0] == before - 1;
    status st = check_lack(m, axes && !goes_on && picture_left(m, &before) > 1, e);
    if (st || !(axes || media_two_way(m)))
        return st;
    for (int64_t i = 0; i < n; i++) {
        int32_t block = picture_left(m, ids + i);
        if (!block)
            continue;
        bool ends = i + block > n; /* a longer prompt may go on with it, where places are on axes */
        bool whole = (!ends || axes) && (media_begins(m, ids[i]) || (!i && goes_on));
        block = ends ? (int32_t)(n - i) : block;
        for (int32_t k = 1; k < block && whole; k++)
            whole = ids[i + k] == ids[i] - k;
        if ((st = check_lack(m, !whole, e)))
            return st;
        i += block - 1;
    }
    return OK;
}

/* ---- Places on axes ---- */

row_axes media_place(const carat_model *m, axes_place *p, int32_t before, int32_t id)
{
    row_axes a = {{p->next, p->next, p->next}};
    p->n++;
    if (!media_has_id(m, id)) {
        p->next++;
        return a;
    }
    pthread_mutex_lock(&m->media->lock);
    const media_span *s = media_span_of(m->media, id);
    int32_t k = s->first - id, cols = s->cols, rows = s->rows;
    pthread_mutex_unlock(&m->media->lock);
    if (!k || before != id + 1) {
        p->start = p->next;
        p->next += rows > cols ? rows : cols;
    }
    a = (row_axes){{p->start, p->start + k / cols, p->start + k % cols}};
    return a;
}
