/* fuzz_modelfile.c - ollama's Modelfile: what a made model is, or one sentence. */
#include "fuzz/fuzz.h"
#include "apps/modelfile.h"

#include <string.h>

static bool is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

static void check(const json_t *root)
{
    static const char *const texts[] = {"from", "system", "license"};
    const json_t *settings = json_object_get(root, "parameters"), *v;
    const json_t *messages = json_object_get(root, "messages");
    const char *name;
    size_t i;
    fuzz_check(json_is_object(root) && json_string_length(json_object_get(root, "from")) > 0,
               "a model of nothing");
    for (i = 0; i < sizeof texts / sizeof *texts; i++)
        fuzz_check(!json_object_get(root, texts[i]) || is_text(json_object_get(root, texts[i])),
                   "a field that is no text");
    json_object_foreach((json_t *)settings, name, v)
        fuzz_check(strcmp(name, "stop") ? is_text(v) || json_is_number(v) : json_is_array(v),
                   "a setting of another kind");
    json_array_foreach(json_object_get(settings, "stop"), i, v)
        fuzz_check(is_text(v), "a stop that is no text");
    json_array_foreach(messages, i, v)
        fuzz_check(is_text(json_object_get(v, "role")) && is_text(json_object_get(v, "content")),
                   "a message without a text");
}

FUZZ(modelfile)
{
    json_t *root;
    err e = {0};
    if (modelfile_parse(&root, (const char *)data, n, "fuzz", &e)) {
        fuzz_check(*e.text && !root, "refused without a reason");
        return;
    }
    check(root);
    json_decref(root);
}
