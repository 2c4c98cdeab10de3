/* convert_vocab.c - tokenizer.json and its neighbours to tokenizer.* keys.
 *
 * Token types follow llama.cpp: entries of added_tokens are control tokens if special, otherwise
 * user-defined. The marks that the output parser reads are always user-defined; the family's other
 * ends of a generation are always control tokens.
 */
#include "apps/convert_int.h"
#include "base/map.h"
#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };
enum { TOKENS_MAX = 1 << 22 }; /* 16 times the published vocabulary */

static bool equals(gguf_string s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.at, text, (size_t)s.n);
}

/* <0x00> to <0xFF> */
static bool is_byte_piece(gguf_string s)
{
    unsigned v;
    char text[8];
    if (s.n != 6 || memcmp(s.at, "<0x", 3))
        return false;
    memcpy(text, s.at, 6);
    text[6] = 0;
    return sscanf(text, "<0x%2X>", &v) == 1 && text[5] == '>';
}

static int32_t token_type_of(const convert_vocab *v, gguf_string piece, bool added, bool special,
                             const char *unk)
{
    const text_family *f = v->family;
    /* turn_open is among the shown marks too, but only templates write it. */
    if (text_is_one_of(f->shown, piece.at, (size_t)piece.n) && !equals(piece, f->turn_open))
        return TYPE_USER_DEFINED;
    if (text_is_one_of(f->ends, piece.at, (size_t)piece.n) &&
        !text_is_one_of(f->shown, piece.at, (size_t)piece.n))
        return TYPE_CONTROL;
    if (unk && equals(piece, unk))
        return TYPE_UNKNOWN;
    if (v->kind->kind == VOCAB_CHARS && is_byte_piece(piece))
        return TYPE_BYTE;
    return !added ? TYPE_NORMAL : special ? TYPE_CONTROL : TYPE_USER_DEFINED;
}

/* Makes space for tokens 0..id. */
static status grow_vocab(convert_vocab *v, int64_t id, int32_t *cap, err *e)
{
    if (id < 0 || id >= (v->most ? v->most : TOKENS_MAX))
        return err_set(e, E_FORMAT, "tokenizer.json: token id %" PRId64 " is out of range", id);
    if (id >= *cap) {
        int32_t n = *cap ? *cap : 4096;
        while (n <= id)
            n *= 2;
        gguf_string *p = mem_realloc(v->piece, (size_t)n, sizeof *p);
        if (p)
            v->piece = p;
        int32_t *t = mem_realloc(v->type, (size_t)n, sizeof *t);
        if (t)
            v->type = t;
        if (!p || !t)
            return err_memory(e, "the vocabulary", (size_t)n * sizeof *p);
        memset(v->piece + *cap, 0, (size_t)(n - *cap) * sizeof *p);
        memset(v->type + *cap, 0, (size_t)(n - *cap) * sizeof *t);
        *cap = n;
    }
    if (id >= v->n)
        v->n = (int32_t)id + 1;
    return OK;
}

/* The token id in v; -1 if v is not an id. */
static int64_t id_of(const jtree *v)
{
    return jtree_is(v, JTREE_INTEGER) && v->n < 12 ? strtoll(v->s, NULL, 10) : -1;
}

static status take_vocab_piece(convert_vocab *v, int64_t id, gguf_string piece, int32_t type,
                               int32_t *cap, err *e)
{
    status st = grow_vocab(v, id, cap, e);
    if (st)
        return st;
    bool same = v->piece[id].n == piece.n && !memcmp(v->piece[id].at, piece.at, (size_t)piece.n);
    if (v->type[id] && !same)
        return err_set(e, E_FORMAT, "tokenizer.json: two tokens have the id %" PRId64, id);
    v->piece[id] = piece;
    v->type[id] = type;
    return OK;
}

/* ---- The pre-tokenizer ---- */

enum { STEPS_MAX = 8 }; /* Laguna has three */

typedef struct step_list {
    const jtree *at[STEPS_MAX];
    size_t n;
} step_list;

static bool is_text(const jtree *v, const char *text)
{
    return jtree_is(v, JTREE_STRING) && v->n == strlen(text) && !memcmp(v->s, text, v->n);
}

/* The steps of a Sequence, or the one step. False: too many. */
static bool list_steps(const jtree *pre, step_list *out)
{
    const jtree *list = jtree_get(pre, "pretokenizers");
    if (!is_text(jtree_get(pre, "type"), "Sequence")) {
        out->at[out->n++] = pre;
        return true;
    }
    for (const jtree *it = jtree_is(list, JTREE_ARRAY) ? list->first : NULL; it; it = it->next) {
        if (out->n == STEPS_MAX)
            return false;
        out->at[out->n++] = it;
    }
    return true;
}

/* The last step only spells bytes as characters. */
static bool only_spells_bytes(const jtree *step)
{
    return is_text(jtree_get(step, "type"), "ByteLevel") &&
           jtree_is(jtree_get(step, "add_prefix_space"), JTREE_FALSE) &&
           jtree_is(jtree_get(step, "use_regex"), JTREE_FALSE);
}

static bool steps_match(const step_list *have, const struct split_step *want)
{
    size_t n = 0;
    for (; want[n].pattern && n < have->n; n++) {
        const jtree *step = have->at[n], *pattern = jtree_get(step, "pattern");
        if (!is_text(jtree_get(step, "type"), "Split") ||
            !is_text(jtree_get(pattern, "Regex"), want[n].pattern) ||
            !is_text(jtree_get(step, "behavior"), want[n].behavior) ||
            jtree_is(jtree_get(step, "invert"), JTREE_TRUE))
            return false;
    }
    return !want[n].pattern && n + 1 == have->n && only_spells_bytes(have->at[n]);
}

/* Of a normalizer or a step. */
static const char *type_of(const jtree *v)
{
    const jtree *type = jtree_get(v, "type");
    return !jtree_is(v, JTREE_OBJECT) ? "none" : jtree_is(type, JTREE_STRING) ? type->s : "?";
}

/* Refuses what the encoder does not do. */
static status check_model(const convert_vocab *v, err *e)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const jtree *model = jtree_get(v->tokenizer, "model"), *x;
    if (jtree_is(jtree_get(model, "byte_fallback"), JTREE_TRUE))
        return err_set(e, E_UNSUPPORTED,
                       "tokenizer.json: byte_fallback is true, the normalizer is %.60s and the "
                       "pre-tokenizer is %.60s, which carat does not know together for %s",
                       type_of(jtree_get(v->tokenizer, "normalizer")),
                       type_of(jtree_get(v->tokenizer, "pre_tokenizer")), v->family->name);
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
        if (jtree_is(x = jtree_get(model, empty[i]), JTREE_STRING) && x->n)
            return err_set(e, E_UNSUPPORTED,
                           "tokenizer.json: %s is \"%.60s\", which carat does not know for %s",
                           empty[i], x->s, v->family->name);
    x = jtree_get(v->tokenizer, "normalizer");
    if (jtree_is(x, JTREE_OBJECT) && !is_text(jtree_get(x, "type"), "NFC"))
        return err_set(e, E_UNSUPPORTED,
                       "tokenizer.json: the normalizer is %.60s, which carat does not know for %s",
                       type_of(x), v->family->name);
    return OK;
}

/* Finds the row of the family's tokenizers whose steps are those of the file. */
static status find_kind(convert_vocab *v, err *e)
{
    const jtree *pre = jtree_get(v->tokenizer, "pre_tokenizer");
    step_list steps = {.n = 0};
    status st;
    v->kind = v->family->tokenizers;
    v->space_first = false;
    if (!v->tokenizer)
        return OK;
    for (; v->kind->model && !v->kind->steps; v->kind++) /* its spelling of spaces tells it */
        if (!(v->kind->how & SPACE_FIRST) || convert_is_spaced(v->tokenizer, &v->space_first))
            return OK;
    if ((st = check_model(v, e)))
        return st;
    if (list_steps(pre, &steps))
        for (; v->kind->model; v->kind++)
            if (steps_match(&steps, v->kind->steps)) {
                bool whole = jtree_is(jtree_get(jtree_get(v->tokenizer, "model"), "ignore_merges"),
                                      JTREE_TRUE);
                return whole == !!(v->kind->how & WHOLE_WORDS)
                           ? OK
                           : err_set(e, E_UNSUPPORTED,
                                     "tokenizer.json: ignore_merges is %s, which carat does not "
                                     "know for %s",
                                     whole ? "true" : "false", v->family->name);
            }
    str found = {0};
    for (size_t i = 0; i < steps.n; i++) {
        const jtree *regex = jtree_get(jtree_get(steps.at[i], "pattern"), "Regex");
        str_printf(&found, "%s%.40s", i ? ", " : "", type_of(steps.at[i]));
        if (jtree_is(regex, JTREE_STRING))
            str_printf(&found, " \"%.300s\"", regex->s);
    }
    st = err_set(e, E_UNSUPPORTED,
                 "tokenizer.json: the pre-tokenizer is %s, which carat does not know for %s",
                 str_text(&found), v->family->name);
    str_free(&found);
    return st;
}

/* ---- Pieces and merges ---- */

static status read_pieces(convert_vocab *v, err *e)
{
    const jtree *model = jtree_get(v->tokenizer, "model"), *pieces = jtree_get(model, "vocab");
    const jtree *added = jtree_get(v->tokenizer, "added_tokens"), *kind = jtree_get(model, "type");
    const jtree *unk_token = jtree_get(model, "unk_token");
    const char *unk = jtree_is(unk_token, JTREE_STRING) ? unk_token->s : v->family->unk;
    int32_t cap = 0;
    status st = OK;
    if (!jtree_is(pieces, JTREE_OBJECT) || (jtree_is(kind, JTREE_STRING) && strcmp(kind->s, "BPE")))
        return err_set(e, E_UNSUPPORTED, "tokenizer.json: not a BPE vocabulary");
    for (const jtree *it = pieces->first; it && !st; it = it->next) {
        gguf_string piece = {it->key, it->n_key};
        st = take_vocab_piece(v, id_of(it), piece, token_type_of(v, piece, false, false, unk), &cap,
                              e);
    }
    for (const jtree *it = jtree_is(added, JTREE_ARRAY) ? added->first : NULL; it && !st;
         it = it->next) {
        const jtree *content = jtree_get(it, "content");
        if (!jtree_is(content, JTREE_STRING))
            return err_set(e, E_FORMAT, "tokenizer.json: an entry of added_tokens has no content");
        gguf_string piece = {content->s, content->n};
        bool special = jtree_is(jtree_get(it, "special"), JTREE_TRUE);
        st = take_vocab_piece(v, id_of(jtree_get(it, "id")), piece,
                              token_type_of(v, piece, true, special, unk), &cap, e);
    }
    return st;
}

/* Merges are "left right" or ["left", "right"]; a space inside a piece would be misread. */
static status read_merges(convert_vocab *v, err *e)
{
    const jtree *list = jtree_get(jtree_get(v->tokenizer, "model"), "merges");
    size_t n = jtree_is(list, JTREE_ARRAY) ? list->count : 0, i = 0;
    v->merge = arena_array(&v->mem, n, sizeof *v->merge);
    if (!v->merge)
        return err_memory(e, "the merges", n * sizeof *v->merge);
    for (const jtree *m = n ? list->first : NULL; m; m = m->next, i++) {
        gguf_string s = {NULL, 0};
        const jtree *a = m->first, *b = a ? a->next : NULL;
        if (jtree_is(m, JTREE_STRING)) {
            s = (gguf_string){m->s, m->n};
        } else if (jtree_is(m, JTREE_ARRAY) && m->count == 2 && jtree_is(a, JTREE_STRING) &&
                   jtree_is(b, JTREE_STRING)) {
            char *p = arena_alloc(&v->mem, a->n + b->n + 1);
            if (!p)
                return err_memory(e, "the merges", a->n + b->n);
            memcpy(p, a->s, a->n);
            p[a->n] = ' ';
            memcpy(p + a->n + 1, b->s, b->n);
            s = (gguf_string){p, a->n + b->n + 1};
        }
        /* The first space after the first byte must be the only one. */
        const char *space = s.n > 2 ? memchr(s.at + 1, ' ', (size_t)s.n - 1) : NULL;
        if (!space || space == s.at + s.n - 1 ||
            memchr(space + 1, ' ', (size_t)(s.at + s.n - space - 1)))
            return err_set(e, E_FORMAT, "tokenizer.json: merge %zu is no pair of pieces", i);
        v->merge[i] = s;
    }
    v->n_merges = n;
    return OK;
}

/* *out NULL: there is no such file. */
static status read_tree(convert_vocab *v, const char *dir, const char *name, const jtree **out,
                        err *e)
{
    enum { DEPTH_MAX = 32 };
    char path[4096], *text;
    struct stat sb;
    size_t n;
    *out = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (stat(path, &sb) && errno == ENOENT)
        return OK;
    status st = file_read_all(path, CONVERT_JSON_MAX, &text, &n, e);
    if (st)
        return st;
    st = jtree_parse(text, n, path, DEPTH_MAX, &v->mem, out, e);
    mem_free(text);
    return st;
}

/* chat_template.jinja, else chat_template of tokenizer_config.json or chat_template.json. */
static status read_template(convert_vocab *v, const char *dir, err *e)
{
    char path[4096];
    size_t n;
    const jtree *extra;
    status st;
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    FILE *f = fopen(path, "re");
    if (f) {
        fclose(f);
        return file_read_all(path, 16 << 20, &v->template, &n, e);
    }
    const jtree *t = jtree_get(v->tokenizer_config, "chat_template");
    if (!t) {
        if ((st = read_tree(v, dir, "chat_template.json", &extra, e)))
            return st;
        t = jtree_get(extra, "chat_template");
    }
    for (const jtree *one = jtree_is(t, JTREE_ARRAY) ? t->first : NULL; one; one = one->next)
        if (is_text(jtree_get(one, "name"), "default")) {
            t = jtree_get(one, "template");
            break;
        }
    if (jtree_is(t, JTREE_STRING) && !(v->template = mem_strndup(t->s, t->n)))
        return err_memory(e, "the chat template", t->n);
    return OK;
}

/* Finds the family by model_type, which begins with the family's name. Of several families the one
 * that knows the tokenizer. */
static status find_family(convert_vocab *v, const char *dir, err *e)
{
    const json_t *text = json_object_get(v->config, "text_config");
    const char *type = json_string_value(json_object_get(text ? text : v->config, "model_type"));
    err first = {0};
    status st;
    for (const text_family *const *f = text_families; *f && type; f++)
        for (const char *const *t = (*f)->model_types; *t; t++)
            if (!strncmp(type, *t, strlen(*t))) {
                err why = {0};
                v->family = *f;
                st = find_kind(v, &why);
                if (!st)
                    return OK;
                /* A row that fits but for one member says more than one that does not. */
                first = first.status && !v->kind->model ? first : why;
                break;
            }
    if (v->family)
        return err_set(e, first.status, "%s", first.text);
    if (!type)
        return err_set(e, E_FORMAT,
                       "%s/config.json: no model_type: is this a checkpoint's directory?", dir);
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    return config_refuse_type(path, type, e);
}

status convert_vocab_take(convert_vocab *v, err *e)
{
    status st = find_kind(v, e); /* again, for callers that know the family */
    if (!st && v->tokenizer && !(st = read_pieces(v, e)))
        st = read_merges(v, e);
    return st;
}

/* Without tokenizer.json the new file has no vocabulary. A directory whose tokenizer has another
 * form is no such case. */
static status refuse_other_forms(const char *dir, err *e)
{
    static const char *const names[] = {"tekken.json", "tokenizer.model", "vocab.json"};
    char path[4096];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (!access(path, F_OK))
            return err_set(e, E_UNSUPPORTED,
                           "%s has %s and no tokenizer.json, which carat reads: transformers makes "
                           "one of the other (AutoTokenizer, save_pretrained)",
                           dir, names[i]);
    }
    return OK;
}

status convert_vocab_read(convert_vocab *v, const char *dir, err *e)
{
    status st;
    if ((st = read_tree(v, dir, "tokenizer.json", &v->tokenizer, e)) ||
        (!v->tokenizer && (st = refuse_other_forms(dir, e))) ||
        (st = read_tree(v, dir, "tokenizer_config.json", &v->tokenizer_config, e)) ||
        (st = convert_read_json(&v->generation, dir, "generation_config.json", false, e)) ||
        (st = convert_read_json(&v->config, dir, "config.json", true, e)) ||
        (st = find_family(v, dir, e)) || (st = convert_vocab_take(v, e)))
        return st;
    return read_template(v, dir, e);
}

status convert_vocab_fit(convert_vocab *v, int32_t n, err *e)
{
    if (v->n > n)
        return err_set(e, E_FORMAT,
                       "tokenizer.json has %" PRId32 " tokens, the embedding only %" PRId32 " rows",
                       v->n, n);
    if (!(v->score = arena_array(&v->mem, (size_t)v->n, sizeof *v->score)))
        return err_memory(e, "the vocabulary", (size_t)v->n * sizeof *v->score);
    status st = v->kind->how & SPACE_FIRST ? convert_scores(v, e) : OK;
    for (int32_t id = 0; id < v->n && !st; id++) {
        if (!(v->kind->how & SPACE_FIRST))
            v->score[id] = -1000; /* not used, but loaders require the array */
        if (v->type[id])
            continue;
        char name[32];
        int len = snprintf(name, sizeof name, "[PAD%" PRId32 "]", id);
        char *p = arena_strndup(&v->mem, name, (size_t)len);
        if (!p)
            return err_memory(e, "the vocabulary", (size_t)len);
        v->piece[id] = (gguf_string){p, (uint64_t)len};
        v->type[id] = TYPE_UNUSED;
    }
    return st;
}

static int32_t find_piece(const convert_vocab *v, const char *text)
{
    for (int32_t id = 0; text && id < v->n; id++)
        if (equals(v->piece[id], text))
            return id;
    return -1;
}

/* "bos_token": "<bos>" or {"content": "<bos>"}; otherwise the usual piece. -1: the model has
 * none. */
static int32_t named_token(const convert_vocab *v, const char *key, const char *usual)
{
    const jtree *t = jtree_get(v->tokenizer_config, key);
    if (jtree_is(t, JTREE_OBJECT))
        t = jtree_get(t, "content");
    int32_t id = find_piece(v, jtree_is(t, JTREE_STRING) ? t->s : NULL);
    return id >= 0 ? id : find_piece(v, usual);
}

static void put_id(gguf_writer *w, const char *key, int32_t id)
{
    if (id >= 0)
        gguf_put_u32(w, key, (uint32_t)id);
}

/* Every token that the generation's settings never want sampled; others than the vocabulary's own
 * cannot be. */
static status put_suppressed(const convert_vocab *v, gguf_writer *w, err *e)
{
    const json_t *list = json_object_get(v->generation, "suppress_tokens");
    size_t n = 0, n_list = json_array_size(list);
    if (!n_list)
        return OK;
    int32_t *ids = mem_calloc(n_list, sizeof *ids);
    if (!ids)
        return err_memory(e, "the suppressed tokens", n_list * sizeof *ids);
    for (size_t i = 0; i < n_list; i++) {
        n += config_integer(json_array_get(list, i), 0, v->n - 1, &ids[n]);
    }
    if (n)
        gguf_put_i32s(w, "tokenizer.ggml.suppress_tokens", ids, n);
    mem_free(ids);
    return OK;
}

/* The token that the tokenizer puts behind each text: the end of its template; -1: none. */
static int32_t appended_token(const convert_vocab *v)
{
    const jtree *p = jtree_get(v->tokenizer, "post_processor");
    const jtree *list = jtree_get(p, "processors");
    for (const jtree *i = list ? list->first : p; i; i = list ? i->next : NULL) {
        const jtree *single = jtree_get(i, "single"), *last = NULL;
        if (!is_text(jtree_get(i, "type"), "TemplateProcessing"))
            continue;
        for (const jtree *t = single ? single->first : NULL; t; t = t->next)
            last = t;
        const jtree *id = jtree_get(jtree_get(last, "SpecialToken"), "id");
        return find_piece(v, jtree_is(id, JTREE_STRING) ? id->s : NULL);
    }
    return -1;
}

static void put_ids(const convert_vocab *v, gguf_writer *w)
{
    const json_t *eos = json_object_get(v->generation, "eos_token_id");
    int32_t eos_id = named_token(v, "eos_token", v->family->eos),
            eot = find_piece(v, v->family->turn_close), end = appended_token(v);
    eos_id = end >= 0 ? end : eos_id;
    if (end >= 0 || jtree_is(jtree_get(v->tokenizer_config, "add_eos_token"), JTREE_TRUE))
        gguf_put_bool(w, "tokenizer.ggml.add_eos_token", true);
    put_id(w, "tokenizer.ggml.bos_token_id", named_token(v, "bos_token", v->family->bos));
    put_id(w, "tokenizer.ggml.eos_token_id", eos_id);
    put_id(w, "tokenizer.ggml.unknown_token_id", named_token(v, "unk_token", v->family->unk));
    put_id(w, "tokenizer.ggml.padding_token_id", named_token(v, "pad_token", v->family->pad));
    put_id(w, "tokenizer.ggml.mask_token_id", named_token(v, "mask_token", v->family->mask));
    /* The generation's list of ends has the end of a turn in it; name it for loaders that go by
     * ids. The rest of the list is found by text. */
    for (size_t i = 0; i < json_array_size(eos); i++) {
        int32_t id;
        if (config_integer(json_array_get(eos, i), 0, v->n - 1, &id) && id == eot) {
            put_id(w, "tokenizer.ggml.eot_token_id", eot);
            break; /* a list may have it twice */
        }
    }
}

/* generation_config.json has the names of transformers, of which the table knows all. */
static void put_sampling(const convert_vocab *v, gguf_writer *w)
{
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    for (int32_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(v->generation, all[i].name);
        if (!value && all[i].also)
            value = json_object_get(v->generation, all[i].also);
        char key[64];
        snprintf(key, sizeof key, "general.sampling.%s", all[i].key);
        double real = json_number_value(value);
        int32_t whole;
        if (all[i].whole && config_integer(value, (int64_t)all[i].min, (int64_t)all[i].max, &whole))
            gguf_put_i32(w, key, whole);
        else if (!all[i].whole && json_is_number(value) && real >= all[i].min && real <= all[i].max)
            gguf_put_f32(w, key, (float)real);
    }
}

status convert_vocab_put(const convert_vocab *v, gguf_writer *w, err *e)
{
    put_sampling(v, w);
    if (!v->n) {
        gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
        return OK;
    }
    gguf_put_string(w, "tokenizer.ggml.model", v->kind->model, strlen(v->kind->model));
    if (v->kind->pre)
        gguf_put_string(w, "tokenizer.ggml.pre", v->kind->pre, strlen(v->kind->pre));
    gguf_put_strings(w, "tokenizer.ggml.tokens", v->piece, (uint64_t)v->n);
    if (v->kind->kind == VOCAB_CHARS)
        gguf_put_f32s(w, "tokenizer.ggml.scores", v->score, (uint64_t)v->n);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", v->type, (uint64_t)v->n);
    if (!(v->kind->how & SPACE_FIRST))
        gguf_put_strings(w, "tokenizer.ggml.merges", v->merge, v->n_merges);
    put_ids(v, w);
    bool bos = jtree_is(jtree_get(v->tokenizer_config, "add_bos_token"), JTREE_TRUE);
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token",
                  v->family->bos_always || (bos && !v->family->bos_never));
    gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", v->space_first);
    if (v->template)
        gguf_put_string(w, "tokenizer.chat_template", v->template, strlen(v->template));
    return put_suppressed(v, w, e);
}

void convert_vocab_free(convert_vocab *v)
{
    json_decref(v->generation);
    json_decref(v->config);
    mem_free(v->template);
    mem_free(v->piece);
    mem_free(v->type);
    arena_free(&v->mem);
    *v = (convert_vocab){0};
}
