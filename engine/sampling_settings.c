/* sampling_settings.c - the rows of carat/sampling_settings.h as a table. */
#include "engine/sample.h"

#include <math.h>
#include <string.h>

enum { REAL, WHOLE };

#define ROW(kind, field, name, also, key, flag, words, min, max, usual, needs, help)               \
    _Static_assert(_Generic(((carat_sampling *)0)->field, float                                    \
                            : REAL, int32_t                                                        \
                            : WHOLE) == (kind),                                                    \
                   #field " has another type than its row");
CARAT_SAMPLING_SETTINGS(ROW, )
#undef ROW

#define ROW(kind, field, name, also, key, flag, words, min, max, usual, needs, help)               \
    {name, also,  (key) ? (key) : (name),          flag, (kind) == WHOLE, min,                     \
     max,  usual, offsetof(carat_sampling, field), help},
static const carat_sampling_setting all[] = {CARAT_SAMPLING_SETTINGS(ROW, )};
#undef ROW

const carat_sampling_setting *carat_sampling_settings(int32_t *n)
{
    *n = sizeof all / sizeof *all;
    return all;
}

const carat_sampling_setting *carat_sampling_find(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name) || (all[i].also && !strcmp(all[i].also, name)))
            return &all[i];
    return NULL;
}

double carat_sampling_get(const carat_sampling *p, const carat_sampling_setting *is)
{
    float real;
    int32_t whole;
    if (is->whole)
        memcpy(&whole, (const char *)p + is->at, sizeof whole);
    else
        memcpy(&real, (const char *)p + is->at, sizeof real);
    return is->whole ? (double)whole : (double)real;
}

bool carat_sampling_set(carat_sampling *p, const carat_sampling_setting *is, double v)
{
    float real = (float)v;
    if (!(v >= is->min && v <= is->max) || (is->whole && v != floor(v)))
        return false;
    int32_t whole = is->whole ? (int32_t)v : 0;
    memcpy((char *)p + is->at, is->whole ? (const void *)&whole : &real, sizeof real);
    return true;
}

void carat_sampling_neutral(carat_sampling *p)
{
    *p = (carat_sampling){0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        carat_sampling_set(p, &all[i], all[i].usual);
}
