/* fuzz_multipart.c - any bytes as a form: refused with a sentence, or fields inside the body that
 * do not overlap. */
#include "apps/server/http/multipart.h"
#include "fuzz/fuzz.h"

FUZZ(multipart)
{
    static multipart m;
    err e = {0};
    status st = multipart_split(&m, "multipart/form-data; boundary=x", (const char *)data, n, &e);
    const char *from = (const char *)data, *end = from + n;
    fuzz_check(!st == !e.text[0] && st == e.status, "a sentence with each failure, and no other");
    for (int32_t i = 0; i < m.n && !st; i++) {
        const multipart_field *f = &m.field[i];
        fuzz_check(f->name > from && f->name + f->n_name < f->at, "a name before its value");
        fuzz_check(!f->file || (f->file > from && f->file + f->n_file < f->at), "a file's name");
        fuzz_check(f->at + f->n <= end, "a value inside the body");
        from = f->at + f->n;
    }
}
