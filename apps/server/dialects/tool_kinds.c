/* tool_kinds.c - see tool_kinds.h. */
#include "apps/server/dialects/tool_kinds.h"

#include <string.h>

#define TEXT "{\"type\":\"string\"}"
#define WHOLE "{\"type\":\"integer\"}"
#define TEXTS "{\"type\":\"array\",\"items\":" TEXT "}"
#define POINT "{\"type\":\"array\",\"items\":" WHOLE "}"
#define OBJECT(members, required)                                                                  \
    "{\"type\":\"object\",\"properties\":{" members "},\"required\":[" required "]}"

#define EDITOR_PARAMETERS(commands)                                                                \
    OBJECT("\"command\":{\"type\":\"string\",\"enum\":[" commands "]},\"path\":" TEXT              \
           ",\"file_text\":" TEXT ",\"old_str\":" TEXT ",\"new_str\":" TEXT                        \
           ",\"insert_line\":" WHOLE ",\"insert_text\":" TEXT ",\"view_range\":" POINT,            \
           "\"command\",\"path\"")

static const char editor_says[] =
    "Views, creates and edits text files. `view` shows a file, or a range of its lines, or a "
    "directory. `create` writes `file_text` to a new file. `str_replace` replaces the one "
    "occurrence of `old_str` by `new_str`. `insert` puts a text behind line `insert_line`.";

static const tool_kind kinds[] = {
    {TOOLS_FLAT, "custom", NULL, NULL, OBJECT("\"input\":" TEXT, "\"input\""), "custom_tool_call",
     "custom_tool_call_output", "input", "input", NULL, "ctc_"},
    {TOOLS_FLAT, "local_shell", "local_shell",
     "Runs a command on the user's machine: the program and its arguments, each a string.",
     OBJECT("\"command\":" TEXTS ",\"timeout_ms\":" WHOLE ",\"working_directory\":" TEXT,
            "\"command\""),
     "local_shell_call", "local_shell_call_output", "action", NULL, "\"type\":\"exec\",\"env\":{}",
     "lsh_"},
    {TOOLS_FLAT, "shell", "shell",
     "Runs shell commands on the user's machine, one after the other, and returns their output.",
     OBJECT("\"commands\":" TEXTS ",\"timeout_ms\":" WHOLE ",\"max_output_length\":" WHOLE,
            "\"commands\""),
     "shell_call", "shell_call_output", "action", NULL, NULL, "sh_"},
    {TOOLS_FLAT, "apply_patch", "apply_patch",
     "Creates, updates or deletes one file. `diff` is what changes, in the V4A diff format: lines "
     "that begin with a blank, + or -, in hunks that begin with @@; for a new file, all its lines "
     "with + before them.",
     OBJECT("\"type\":{\"type\":\"string\",\"enum\":[\"create_file\",\"update_file\","
            "\"delete_file\"]},\"path\":" TEXT ",\"diff\":" TEXT,
            "\"type\",\"path\""),
     "apply_patch_call", "apply_patch_call_output", "operation", NULL, NULL, "apc_"},
    {TOOLS_FLAT, "tool_search", "tool_search", "Searches for tools that are not declared yet.",
     OBJECT("\"query\":" TEXT, "\"query\""), "tool_search_call", "tool_search_output", "arguments",
     NULL, "\"execution\":\"client\"", "tsc_"},
    {TOOLS_ANTHROPIC, "bash_", "bash",
     "Runs a command in a bash session that stays open between calls. `restart` begins a new one.",
     OBJECT("\"command\":" TEXT ",\"restart\":{\"type\":\"boolean\"}", ""), .call = NULL},
    {TOOLS_ANTHROPIC, "text_editor_2024", "str_replace_editor", editor_says,
     EDITOR_PARAMETERS("\"view\",\"create\",\"str_replace\",\"insert\",\"undo_edit\""),
     .call = NULL},
    {TOOLS_ANTHROPIC, "text_editor_20250124", "str_replace_editor", editor_says,
     EDITOR_PARAMETERS("\"view\",\"create\",\"str_replace\",\"insert\",\"undo_edit\""),
     .call = NULL},
    {TOOLS_ANTHROPIC, "text_editor_", "str_replace_based_edit_tool", editor_says,
     EDITOR_PARAMETERS("\"view\",\"create\",\"str_replace\",\"insert\""), .call = NULL},
    {TOOLS_ANTHROPIC, "computer_", "computer",
     "Uses the mouse, the keyboard and the screen of a computer. Coordinates are pixels from the "
     "upper left corner.",
     OBJECT("\"action\":{\"type\":\"string\",\"enum\":[\"key\",\"type\",\"mouse_move\","
            "\"left_click\",\"left_click_drag\",\"right_click\",\"middle_click\",\"double_click\","
            "\"triple_click\",\"left_mouse_down\",\"left_mouse_up\",\"scroll\",\"hold_key\","
            "\"wait\",\"screenshot\",\"cursor_position\",\"zoom\"]},\"coordinate\":" POINT
            ",\"start_coordinate\":" POINT ",\"text\":" TEXT
            ",\"duration\":{\"type\":\"number\"},\"scroll_direction\":{\"type\":\"string\","
            "\"enum\":[\"up\",\"down\",\"left\",\"right\"]},\"scroll_amount\":" WHOLE
            ",\"region\":" POINT,
            "\"action\""),
     .call = NULL},
    {TOOLS_ANTHROPIC, "memory_", "memory",
     "Keeps notes in files below /memories, which later conversations can read. `view` shows a "
     "file or the directory; look there first.",
     OBJECT("\"command\":{\"type\":\"string\",\"enum\":[\"view\",\"create\",\"str_replace\","
            "\"insert\",\"delete\",\"rename\"]},\"path\":" TEXT ",\"file_text\":" TEXT
            ",\"old_str\":" TEXT ",\"new_str\":" TEXT ",\"insert_line\":" WHOLE
            ",\"insert_text\":" TEXT ",\"old_path\":" TEXT ",\"new_path\":" TEXT
            ",\"view_range\":" POINT,
            "\"command\""),
     .call = NULL},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

const tool_kind *tool_kind_find(tools_shape shape, const char *type)
{
    for (size_t i = 0; i < KINDS; i++) {
        size_t n = strlen(kinds[i].type);
        bool dated = shape == TOOLS_ANTHROPIC;
        if (kinds[i].shape == shape &&
            (dated ? !strncmp(type, kinds[i].type, n) : !strcmp(type, kinds[i].type)))
            return &kinds[i];
    }
    return NULL;
}

const tool_kind *tool_kind_of_item(const jtree *type, bool result)
{
    for (size_t i = 0; i < KINDS; i++)
        if (kinds[i].call && tree_says(type, result ? kinds[i].result : kinds[i].call))
            return &kinds[i];
    return NULL;
}

const char *tool_kind_why(const char *type)
{
    static const char *const hosted[] = {"web_search",  "web_fetch", "file_search",
                                         "code_",       "mcp",       "image_generation",
                                         "tool_search", "shell",     "advisor"};
    if (!strncmp(type, "computer", 8))
        return "its results are pictures that another server makes";
    for (size_t i = 0; i < sizeof hosted / sizeof *hosted; i++)
        if (!strncmp(type, hosted[i], strlen(hosted[i])))
            return "the server of the API runs it, and carat runs no tools";
    return "carat does not know it";
}
