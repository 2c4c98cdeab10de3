/* ollama_model.c - see ollama_model.h. */
#include "apps/server/models/ollama_model.h"

#include "apps/server/answers/infill.h"
#include "apps/jsonw.h"
#include "base/sha.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LIST_SHOWN = 5 }; /* longer lists of the metadata are shown empty */

/* A time as RFC 3339 in UTC, whose years have four digits; clients fail to read others. */
static void put_time(str *o, const char *key, int64_t seconds)
{
    static const int64_t year_10000_s = INT64_C(253402300800);
    time_t at = seconds >= 0 && seconds < year_10000_s ? (time_t)seconds : 0;
    struct tm t = {.tm_year = 70, .tm_mday = 1};
    char text[40];
    gmtime_r(&at, &t);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &t);
    json_text(o, key, text);
}

void ollama_describe(ollama_model *out, const carat_model *m)
{
    carat_model_info i;
    carat_marks marks;
    carat_model_get_info(m, &i);
    carat_model_get_marks(m, &marks);
    infill_marks gaps = infill_find(m);
    out->family = i.architecture;
    out->quant = i.file_type;
    out->n_params = i.n_params;
    out->n_bytes = out->n_bytes ? out->n_bytes : i.weight_bytes;
    out->n_ctx = i.n_ctx_train;
    out->n_embd = i.n_embd;
    out->completes = !carat_model_is_encoder(m);
    out->embeds = true;
    out->calls = i.has_chat && marks.calls;
    out->thinks = i.has_chat && marks.thought_open >= 0;
    out->fills = infill_possible(&gaps);
    out->sees = i.mmproj != NULL;
    out->hears = i.hears;
}

/* ---- Parts ---- */

static void put_capabilities(const ollama_model *m, str *o)
{
    const struct {
        bool has;
        const char *word;
    } all[] = {{m->completes, "completion"}, {m->calls, "tools"}, {m->fills, "insert"},
               {m->sees, "vision"},          {m->hears, "audio"}, {m->thinks, "thinking"},
               {m->embeds, "embedding"}};
    json_open(o, "capabilities", '[');
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].has)
            json_text(o, NULL, all[i].word);
    json_close(o, "]");
}

static void put_details(const ollama_model *m, str *o)
{
    const char *family = m->family ? m->family : "";
    char size[32] = "";
    double n = (double)m->n_params;
    if (m->n_params)
        snprintf(size, sizeof size, n >= 1e9 ? "%.1fB" : "%.2fM", n / (n >= 1e9 ? 1e9 : 1e6));
    json_open(o, "details", '{');
    json_text(o, "parent_model", m->parent ? m->parent : "");
    json_text(o, "format", "gguf");
    json_text(o, "family", family);
    json_open(o, "families", '[');
    if (*family)
        json_text(o, NULL, family);
    json_close(o, "]");
    json_text(o, "parameter_size", size);
    json_text(o, "quantization_level", m->quant ? m->quant : "");
    if (m->n_ctx)
        json_int(o, "context_length", m->n_ctx);
    if (m->n_embd)
        json_int(o, "embedding_length", m->n_embd);
    json_close(o, "}");
}

/* Clients cut a digest to 12 digits without looking, so every model has one: that of its name, if
 * that of its file is unknown. */
static void put_digest(const ollama_model *m, str *o)
{
    char made[65];
    if (m->digest && *m->digest) {
        json_text(o, "digest", m->digest);
        return;
    }
    sha_stream h;
    sha256_init(&h);
    sha_put(&h, m->name, strlen(m->name));
    sha_text(&h, made);
    json_text(o, "digest", made);
}

void ollama_put_model(const ollama_model *m, bool loaded, str *o)
{
    enum { CENTURIES_S = 1000000000 }; /* 31 years, ten times */
    json_open(o, NULL, '{');
    json_text(o, "name", m->name);
    json_text(o, "model", m->name);
    json_int(o, "size", (int64_t)m->n_bytes);
    put_digest(m, o);
    put_details(m, o);
    if (loaded) {
        int64_t never = (int64_t)time(NULL) + INT64_C(10) * CENTURIES_S;
        put_time(o, "expires_at", m->until_s ? m->until_s : never);
        json_int(o, "size_vram", (int64_t)m->gpu_bytes);
        json_int(o, "context_length", m->n_ctx);
    } else {
        put_time(o, "modified_at", m->when_s);
        put_capabilities(m, o);
    }
    json_close(o, "}");
}

/* ---- One model ---- */

static void put_value(const carat_meta *v, bool verbose, str *o)
{
    carat_meta item;
    uint64_t at = 0;
    switch (v->kind) {
    case CARAT_META_INT:
        json_int(o, v->key, v->i);
        break;
    case CARAT_META_REAL:
        json_number(o, v->key, v->real);
        break;
    case CARAT_META_BOOL:
        json_bool(o, v->key, v->i != 0);
        break;
    case CARAT_META_TEXT:
        json_text_n(o, v->key, v->text, (size_t)v->n_text);
        break;
    case CARAT_META_LIST:
        json_open(o, v->key, '[');
        while ((verbose || v->n_items <= LIST_SHOWN) && carat_meta_next(v, &at, &item))
            put_value(&item, verbose, o);
        json_close(o, "]");
        break;
    case CARAT_META_OTHER:
        json_nothing(o, v->key);
        break;
    }
}

static void put_text_of(const carat_model *m, const char *key, const char *name, str *o)
{
    carat_meta v;
    if (carat_model_find_meta(m, key, &v) && v.kind == CARAT_META_TEXT)
        json_text_n(o, name, v.text, (size_t)v.n_text);
    else
        json_text(o, name, "");
}

/* The sampling settings as a Modelfile has them: a made model's own, else the four that are nearly
 * always on, and what the file says otherwise. */
static void put_parameters(const carat_model *m, const beginning *made, str *o)
{
    carat_sampling s;
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    str text = {0};
    if (made->settings && made->settings->count) {
        beginning_put_settings(made, "", &text);
        json_text_n(o, "parameters", str_text(&text), text.n);
        o->bad |= text.bad;
        str_free(&text);
        return;
    }
    carat_sampling_default(m, &s);
    for (int32_t i = 0; i < n; i++) {
        double v = carat_sampling_get(&s, &all[i]);
        if (i < 4 || fabs(v - all[i].usual) > 1e-6)
            str_printf(&text, "%s%-30s %g", i ? "\n" : "", all[i].name, v);
    }
    json_text_n(o, "parameters", str_text(&text), text.n);
    o->bad |= text.bad;
    str_free(&text);
}

/* A text of a Modelfile. The quotes have no escapes there, so what holds three goes out plain. */
static void put_quoted(str *o, const char *word, const char *text)
{
    bool quotes = strstr(text, "\"\"\"") != NULL;
    str_printf(o, quotes ? "%s %s\n" : "%s \"\"\"%s\"\"\"\n", word, text);
}

static void put_modelfile(const ollama_model *about, const beginning *made, str *o)
{
    str file = {0};
    str_printf(&file, "FROM %s\n", made->name ? made->from : about->name);
    for (const jtree *v = made->adapters ? made->adapters->first : NULL; v; v = v->next)
        str_printf(&file, "ADAPTER %s\n", v->s);
    if (made->system)
        put_quoted(&file, "SYSTEM", made->system);
    beginning_put_settings(made, "PARAMETER ", &file);
    for (const jtree *m = made->messages ? made->messages->first : NULL; m; m = m->next) {
        char word[32];
        snprintf(word, sizeof word, "MESSAGE %.20s", jtree_get(m, "role")->s);
        put_quoted(&file, word, jtree_get(m, "content")->s);
    }
    if (made->license)
        put_quoted(&file, "LICENSE", made->license);
    json_text_n(o, "modelfile", str_text(&file), file.n);
    o->bad |= file.bad;
    str_free(&file);
}

void ollama_put_show(const ollama_model *about, const carat_model *m, const beginning *made,
                     bool verbose, str *o)
{
    carat_meta v;
    json_open(o, NULL, '{');
    if (made->license)
        json_text(o, "license", made->license);
    else
        put_text_of(m, "general.license", "license", o);
    put_modelfile(about, made, o);
    put_parameters(m, made, o);
    put_text_of(m, "tokenizer.chat_template", "template", o);
    if (made->system)
        json_text(o, "system", made->system);
    if (made->messages)
        json_tree(o, "messages", made->messages);
    put_details(about, o);
    json_open(o, "model_info", '{');
    for (int64_t i = 0; carat_model_meta(m, i, &v); i++)
        if (strcmp(v.key, "general.name") && strcmp(v.key, "tokenizer.chat_template"))
            put_value(&v, verbose, o);
    json_close(o, "}");
    put_capabilities(about, o);
    put_time(o, "modified_at", about->when_s);
    json_close(o, "}");
}
