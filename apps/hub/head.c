/* head.c - see head.h. Versions 2 and 3 of GGUF, little-endian. No read leaves the bytes. */
#include "apps/hub/head.h"

#include "base/bytes.h"
#include "base/str.h"

#include <string.h>

/* Kinds of values, as the format numbers them. */
enum {
    KIND_U32 = 4,
    KIND_I32 = 5,
    KIND_BOOL = 7,
    KIND_U64 = 10,
    KIND_STRING = 8,
    KIND_ARRAY = 9,
    KINDS = 13,
    DIMS_MAX = 8,
    ARCH_MAX = 256
};

typedef struct text {
    const char *at; /* not NUL-terminated; NULL: beyond the bytes */
    uint64_t n;
} text;

static const char key[] = "general.architecture";

static text take_text(reader *r)
{
    uint64_t n = rd_u64(r);
    const char *at = rd_bytes(r, n);
    return (text){at, at ? n : 0};
}

/* Arrays of arrays and unknown kinds end the search. */
static bool skip_value(reader *r, uint32_t kind)
{
    static const unsigned char sizes[KINDS] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t n = 1, n_bytes;
    if (kind == KIND_ARRAY) {
        kind = rd_u32(r);
        n = rd_u64(r);
    }
    if (kind < KINDS && sizes[kind])
        return ck_mul(n, sizes[kind], &n_bytes) && rd_bytes(r, n_bytes);
    while (n && kind == KIND_STRING && take_text(r).at)
        n--;
    return !n;
}

/* Moves r to the value of a key, and says its kind. False: it is not within the bytes. */
static bool find_value(reader *r, const char *name, uint32_t *kind)
{
    const void *magic = rd_bytes(r, 4);
    uint32_t version = rd_u32(r);
    rd_u64(r); /* tensors */
    uint64_t n = rd_u64(r);
    if (!magic || memcmp(magic, "GGUF", 4) || version < 2 || version > 3)
        return false;
    for (; n; n--) {
        text own = take_text(r);
        *kind = rd_u32(r);
        if (own.at && own.n == strlen(name) && !memcmp(own.at, name, own.n))
            return true;
        if (!own.at || !skip_value(r, *kind))
            break;
    }
    return false;
}

/* One line of the list of tensors. */
static bool take_tensor(reader *r, head_tensor *t)
{
    text name = take_text(r);
    uint32_t n_dims = rd_u32(r);
    *t = (head_tensor){.name = name.at, .n_name = (size_t)name.n, .n = 1};
    if (!name.at || n_dims > DIMS_MAX)
        return false;
    for (uint32_t i = 0; i < n_dims; i++)
        if (!ck_mul(t->n, rd_u64(r), &t->n))
            return false;
    t->type = rd_u32(r);
    t->at = rd_u64(r);
    return !r->bad;
}

status head_measure(const void *bytes, size_t n_bytes, const char *name, size_t *end,
                    head_tensor_fn each, void *user, err *e)
{
    uint64_t alignment = 32, begin = 0;
    head_tensor t;
    reader r = reader_of(bytes, n_bytes);
    const void *magic = rd_bytes(&r, 4);
    uint32_t version = rd_u32(&r);
    uint64_t n_tensors = rd_u64(&r), n_keys = rd_u64(&r);
    bool ok = true;
    if (!r.bad && (memcmp(magic, "GGUF", 4) || version < 2 || version > 3))
        return err_set(e, E_FORMAT, "%s: no GGUF file of version 2 or 3", name);
    for (; n_keys && ok && !r.bad; n_keys--)
        ok = take_text(&r).at && skip_value(&r, rd_u32(&r));
    const reader list = r;
    for (uint64_t i = 0; i < n_tensors && ok && !r.bad; i++)
        ok = take_tensor(&r, &t);
    if (r.bad)
        return err_set(e, E_LIMIT, "%s: its head does not end within %zu bytes", name, n_bytes);
    if (!ok)
        return err_set(e, E_FORMAT, "%s: its keys are damaged", name);
    *end = n_bytes - reader_left(&r);
    head_number(bytes, n_bytes, "general.alignment", &alignment);
    if (!alignment || !ck_align(*end, alignment, &begin))
        return err_set(e, E_FORMAT, "%s: general.alignment is damaged", name);
    r = list;
    for (uint64_t i = 0; i < n_tensors && take_tensor(&r, &t); i++)
        if (ck_add(t.at, begin, &t.at))
            each(user, &t);
    return OK;
}

static text find_architecture(const void *bytes, size_t n_bytes)
{
    reader r = reader_of(bytes, n_bytes);
    uint32_t kind;
    return find_value(&r, key, &kind) && kind == KIND_STRING ? take_text(&r) : (text){0};
}

bool head_text(const void *bytes, size_t n_bytes, const char *name, char *out, size_t cap)
{
    reader r = reader_of(bytes, n_bytes);
    uint32_t kind;
    text t = find_value(&r, name, &kind) && kind == KIND_STRING ? take_text(&r) : (text){0};
    if (!t.at || t.n >= cap || memchr(t.at, 0, (size_t)t.n))
        return false;
    memcpy(out, t.at, (size_t)t.n);
    out[t.n] = 0;
    return true;
}

bool head_any(const void *bytes, size_t n_bytes, const char *name)
{
    reader r = reader_of(bytes, n_bytes);
    uint32_t kind;
    if (!find_value(&r, name, &kind) || kind != KIND_ARRAY || rd_u32(&r) != KIND_BOOL)
        return false;
    uint64_t n = rd_u64(&r);
    const unsigned char *at = rd_bytes(&r, n);
    for (uint64_t i = 0; at && i < n; i++)
        if (at[i])
            return true;
    return false;
}

bool head_number(const void *bytes, size_t n_bytes, const char *name, uint64_t *out)
{
    reader r = reader_of(bytes, n_bytes);
    uint32_t kind;
    if (!find_value(&r, name, &kind) || (kind != KIND_U32 && kind != KIND_I32 && kind != KIND_U64))
        return false;
    uint64_t v = kind == KIND_U64 ? rd_u64(&r) : rd_u32(&r);
    if (r.bad)
        return false;
    *out = v;
    return true;
}

static void put_number(str *s, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        str_putc(s, (char)(v >> (8 * i)));
}

/* Drafters that --draft takes. As models they are refused, which here would be wrong. */
static bool is_drafter(text arch)
{
    static const char *const names[] = {"dflash", "dflash-draft", "gemma4-assistant",
                                        "gemma4_assistant", "gemma4_mtp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]); /* "qwen35-dflash-draft" is one, too */
        if (arch.n >= n && !memcmp(arch.at + arch.n - n, names[i], n))
            return true;
    }
    return false;
}

/* A file that says its architecture alone: opening it fails in any case, with E_UNSUPPORTED where
 * carat does not know the architecture. */
status model_head_check(const void *bytes, size_t n_bytes, const char *name, err *e)
{
    text arch = find_architecture(bytes, n_bytes);
    carat_model *m = NULL;
    str probe = {0};
    err why = {0};
    if (!arch.n || arch.n > ARCH_MAX || is_drafter(arch))
        return OK;
    str_puts(&probe, "GGUF");
    put_number(&probe, 3, 4);
    put_number(&probe, 0, 8);
    put_number(&probe, 1, 8);
    put_number(&probe, sizeof key - 1, 8);
    str_puts(&probe, key);
    put_number(&probe, KIND_STRING, 4);
    put_number(&probe, arch.n, 8);
    str_put(&probe, arch.at, (size_t)arch.n);
    while (probe.n % 32)
        str_putc(&probe, 0);
    status st = probe.bad ? err_memory(e, name, probe.n) : OK;
    if (!st &&
        carat_model_open_bytes(probe.at, probe.n, name, &(carat_model_options){.vocab_only = true},
                               &m, &why) == E_UNSUPPORTED)
        st = err_set(e, E_UNSUPPORTED, "%s", why.text);
    carat_model_close(m);
    str_free(&probe);
    return st;
}
