/* request_test.c - requests of each dialect, and the problem for each mistake. */
#include "apps/server/dialects/request.h"
#include "tests/talk_json.h"
#include "tests/test.h"

#include <time.h>

static const request_limits limits = {.n_vocab = 1000, .sampling = {.temperature = 1, .top_p = 1}};

typedef struct mistake {
    api_kind api;
    const char *body, *param; /* the field that must be named */
    const char *says;         /* a part of the sentence */
} mistake;

#define M "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define I "\"input\":\"x\""
#define P "\"prompt\":\"x\""
#define F "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

static const mistake mistakes[] = {
    {API_CHAT, "", "", "the body"},
    {API_CHAT, "{", "", "the body"},
    {API_CHAT, "[]", "", "expected a JSON object"},
    {API_CHAT, "{\"a\":NaN}", "", "the body"},
    {API_CHAT, "{}", "messages", "missing"},
    {API_CHAT, "{\"messages\":null}", "messages", "missing"},
    {API_CHAT, "{\"messages\":[]}", "messages", "empty"},
    {API_CHAT, "{\"messages\":{}}", "messages", "expected an array"},
    {API_CHAT, "{\"messages\":[1]}", "messages[0]", "expected an object"},
    {API_CHAT, "{" M ",\"temperature\":\"hot\"}", "temperature", "a string; expected a number"},
    {API_CHAT, "{" M ",\"temperature\":-1}", "temperature", "from 0 to 100"},
    {API_CHAT, "{" M ",\"temperature\":1e400}", "temperature", "from 0 to 100"},
    {API_CHAT, "{" M ",\"top_p\":2}", "top_p", "from 0 to 1"},
    {API_CHAT, "{" M ",\"top_k\":1.5}", "top_k", "whole number"},
    {API_CHAT, "{" M ",\"max_tokens\":99999999999999999999}", "max_tokens", "whole number"},
    {API_CHAT, "{" M ",\"max_tokens\":0}", "max_tokens", "at least one"},
    {API_CHAT, "{" M ",\"max_completion_tokens\":0}", "max_completion_tokens", "at least one"},
    {API_CHAT, "{" M ",\"n\":0}", "n", "from 1"},
    {API_CHAT, "{" M ",\"n\":1000}", "n", "from 1"},
    {API_CHAT, "{" M ",\"stream\":1}", "stream", "true or false"},
    {API_CHAT, "{" M ",\"stream_options\":[]}", "stream_options", "an object"},
    {API_CHAT, "{" M ",\"seed\":\"a\"}", "seed", "whole number"},
    {API_CHAT, "{" M ",\"stop\":1}", "stop", "a string or an array"},
    {API_CHAT, "{" M ",\"stop\":[1]}", "stop", "expected strings"},
    {API_CHAT, "{" M ",\"stop\":[\"a\\u0000b\"]}", "stop", "zero character"},
    {API_CHAT, "{" M ",\"logit_bias\":{\"1000\":1}}", "logit_bias", "0 to 999"},
    {API_CHAT, "{" M ",\"logit_bias\":{\"\":1}}", "logit_bias", "token id"},
    {API_CHAT, "{" M ",\"logit_bias\":{\"1\":\"x\"}}", "logit_bias", "no number"},
    {API_CHAT, "{" M ",\"logit_bias\":[[1]]}", "logit_bias", "token id"},
    {API_CHAT, "{" M ",\"logit_bias\":7}", "logit_bias", ""},
    {API_CHAT, "{" M ",\"top_logprobs\":3}", "top_logprobs", "needs 'logprobs'"},
    {API_CHAT, "{" M ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs", "20"},
    {API_CHAT, "{" M ",\"reasoning_effort\":\"huge\"}", "reasoning_effort", "huge"},
    {API_CHAT, "{" M ",\"thinking\":{}}", "thinking.type", "missing"},
    {API_CHAT, "{" M ",\"thinking\":{\"type\":\"x\"}}", "thinking.type", "expected enabled"},
    {API_CHAT, "{" M ",\"chat_template_kwargs\":{\"enable_thinking\":\"yes\"}}", "enable_thinking",
     "true or false"},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"xml\"}}", "response_format", "xml"},
    {API_CHAT, "{" M ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format",
     "no schema"},
    {API_CHAT, "{" M ",\"tools\":{}}", "tools", "expected an array"},
    {API_CHAT, "{" M ",\"tools\":[{\"type\":\"web\"}]}", "tools[0]", "expected \"function\""},
    {API_CHAT, "{" M ",\"tools\":[{\"type\":\"function\"}]}", "tools[0]", "expected an object"},
    {API_CHAT, "{" M ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}",
     "tools[0].function.name", "no usable name"},
    {API_CHAT,
     "{" M ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"parameters\":[]}}]}",
     "tools[0].function.parameters", "JSON schema"},
    {API_CHAT, "{" M ",\"tool_choice\":\"required\"}", "tool_choice", "no tools"},
    {API_CHAT, "{" M "," F ",\"tool_choice\":\"some\"}", "tool_choice", "some"},
    {API_CHAT,
     "{" M "," F ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
     "tool_choice", "\"g\""},
    {API_CHAT, "{" M "," F ",\"tool_choice\":{\"type\":\"allowed_tools\"}}", "tool_choice",
     "'mode'"},
    {API_CHAT,
     "{" M "," F
     ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\","
     "\"tools\":[]}}}",
     "tool_choice", "'tools' must list"},
    {API_CHAT,
     "{" M "," F
     ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\","
     "\"tools\":[{\"type\":\"function\"}]}}}",
     "tool_choice", "'tool_choice.tools[0]' names no"},
    {API_RESPONSES,
     "{" I ",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":"
     "\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":\"function\",\"name\":\"g\"}]}}",
     "tool_choice", "\"g\""},
    {API_RESPONSES,
     "{" I ",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":"
     "\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"web_search\"}]}}",
     "tool_choice", "none of the tools"},
    {API_RESPONSES, "{" I ",\"top_logprobs\":21}", "top_logprobs", "from 0 to 20"},
    {API_RESPONSES, "{" I ",\"include\":\"x\"}", "include", "an array"},
    {API_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
     "\"image_url\":{\"url\":\"x\"}}]}]}",
     "messages[0].content[0]", "image input is not supported by this model"},
    {API_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
     "\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\"}}]}]}",
     "messages[1]", "results are missing"},
    {API_COMPLETIONS, "{}", "prompt", "missing"},
    {API_COMPLETIONS, "{\"prompt\":[]}", "prompt", "0 prompts"},
    {API_COMPLETIONS, "{\"prompt\":[1000]}", "prompt", "token id"},
    {API_COMPLETIONS, "{\"prompt\":[1,\"a\"]}", "prompt", "token id"},
    {API_COMPLETIONS, "{\"prompt\":[\"a\",1]}", "prompt", "expected strings"},
    {API_COMPLETIONS, "{\"prompt\":[[]]}", "prompt", "empty"},
    {API_COMPLETIONS, "{" P ",\"suffix\":\"y\"}", "suffix", "not supported"},
    {API_COMPLETIONS, "{" P ",\"best_of\":3}", "best_of", "3"},
    {API_COMPLETIONS, "{" P ",\"echo\":1,\"stream\":true}", "echo", "true or false"},
    {API_COMPLETIONS, "{" P ",\"prompt_logprobs\":21,\"stream\":true}", "prompt_logprobs",
     "0 to 20"},
    {API_COMPLETIONS, "{" P ",\"prompt_logprobs\":-1}", "prompt_logprobs", "0 to 20"},
    {API_COMPLETIONS, "{" P ",\"n_probs\":21}", "n_probs", "0 to 20"},
    {API_CHAT, "{" M ",\"typical_p\":1.5}", "typical_p", "0 to 1"},
    {API_CHAT, "{" M ",\"top_n_sigma\":-2}", "top_n_sigma", "-1 to"},
    {API_CHAT, "{" M ",\"xtc_threshold\":\"x\"}", "xtc_threshold", "number"},
    {API_CHAT, "{" M ",\"mirostat\":3}", "mirostat", "0 to 2"},
    {API_CHAT, "{" M ",\"mirostat\":1.5}", "mirostat", "whole"},
    {API_CHAT, "{" M ",\"mirostat_tau\":1e400}", "mirostat_tau", "0 to 100"},
    {API_CHAT, "{" M ",\"dry_multiplier\":-1}", "dry_multiplier", "from 0"},
    {API_CHAT, "{" M ",\"dry_allowed_length\":99999999999}", "dry_allowed_length", "from 0"},
    {API_CHAT, "{" M ",\"dry_sequence_breakers\":[]}", "dry_sequence_breakers", "empty"},
    {API_CHAT, "{" M ",\"dry_sequence_breakers\":\"x\"}", "dry_sequence_breakers", "array"},
    {API_CHAT, "{" M ",\"dry_sequence_breakers\":[1]}", "dry_sequence_breakers", "strings"},
    {API_CHAT, "{" M ",\"samplers\":[\"top_k\",\"adaptive_p\"]}", "samplers", "adaptive_p"},
    {API_CHAT, "{" M ",\"samplers\":[\"top_k\",\"top-k\"]}", "samplers", "twice"},
    {API_CHAT, "{" M ",\"samplers\":\"ki\"}", "samplers", "expected"},
    {API_CHAT, "{" M ",\"samplers\":7}", "samplers", "array"},
    {API_CHAT, "{" M ",\"min_tokens\":-1}", "min_tokens", "from 0"},
    {API_CHAT, "{" M ",\"stop_token_ids\":[1000]}", "stop_token_ids", "0 to 999"},
    {API_CHAT, "{" M ",\"stop_token_ids\":[\"a\"]}", "stop_token_ids", "token id"},
    {API_CHAT, "{" M ",\"allowed_token_ids\":[-1]}", "allowed_token_ids", "0 to 999"},
    {API_CHAT, "{" M ",\"bad_words\":[\"\"]}", "bad_words", "empty"},
    {API_CHAT, "{" M ",\"bad_words\":\"x\"}", "bad_words", "array"},
    {API_CHAT, "{" M ",\"structural_tag\":\"x\"}", "structural_tag", "not supported"},
    {API_CHAT, "{" M ",\"guided_json_object\":true,\"guided_regex\":\"a\"}", "guided_regex",
     "exclude"},
    {API_RESPONSES, "{}", "input", "missing"},
    {API_RESPONSES, "{\"input\":[]}", "input", "empty"},
    {API_RESPONSES, "{\"input\":[1]}", "input[0]", "no object"},
    {API_RESPONSES, "{\"input\":[{\"type\":\"odd\"}]}", "input", "empty"},
    {API_RESPONSES, "{\"input\":[{\"type\":\"additional_tools\",\"tools\":\"x\"}]}",
     "input[0].tools", "an array"},
    {API_RESPONSES,
     "{" I ",\"tools\":[{\"type\":\"web_search\"}],\"tool_choice\":{\"type\":"
     "\"web_search\"}}",
     "tool_choice", "runs no tools"},
    {API_RESPONSES, "{" I ",\"tools\":[{\"type\":\"mcp\"}],\"tool_choice\":\"required\"}",
     "tool_choice", "can run"},
    {API_RESPONSES, "{" I ",\"tools\":[{\"type\":\"custom\"}]}", "tools[0].name",
     "expected a name"},
    {API_RESPONSES,
     "{" I ",\"tools\":[{\"type\":\"custom\",\"name\":\"a\"}],\"tool_choice\":"
     "{\"type\":\"custom\",\"name\":\"b\"}}",
     "tool_choice", "\"b\""},
    {API_MESSAGES,
     "{" M ",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}],"
     "\"tool_choice\":{\"type\":\"tool\",\"name\":\"web_search\"}}",
     "tool_choice", "\"web_search\""},
    {API_MESSAGES,
     "{" M ",\"tools\":[{\"type\":\"code_execution_20250825\",\"name\":\"c\"}],"
     "\"tool_choice\":{\"type\":\"any\"}}",
     "tool_choice", "can run"},
    {API_MESSAGES,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":"
     "{\"type\":\"base64\",\"data\":\"\"}}]}]}",
     "messages[0].content[0]", "no text"},
    {API_RESPONSES, "{\"input\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "input[0]", "role"},
    {API_RESPONSES, "{" I ",\"max_output_tokens\":0}", "max_output_tokens", "from 1"},
    {API_RESPONSES, "{" I ",\"reasoning\":{\"effort\":\"x\"}}", "reasoning.effort", "x"},
    {API_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
     "input[0]", "image"},
    {API_MESSAGES, "{}", "messages", "missing"},
    {API_MESSAGES, "{" M ",\"max_tokens\":0}", "max_tokens", "from 1"},
    {API_MESSAGES, "{" M ",\"system\":1}", "system", "a string or text blocks"},
    {API_MESSAGES, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "messages[0]", "tool"},
    {API_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
     "messages[0].content[0]", "image"},
    {API_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]}",
     "messages[0].content[0]", "tool_use_id"},
    {API_MESSAGES, "{" M ",\"stop_sequences\":[null]}", "stop_sequences", "expected strings"},
    {API_MESSAGES, "{" M ",\"tool_choice\":\"auto\"}", "tool_choice", "expected an object"},
};

TEST(request_mistakes_are_400_and_name_the_field)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const mistake *m = &mistakes[i];
        AUTO(request_free) request rq = {0};
        problem p = {0};
        bool ok = request_parse(&rq, m->api, m->body, strlen(m->body), &limits, &p);
        CHECK_MSG(!ok && p.status == 400, "%s: status %d", m->body, p.status);
        CHECK_MSG(!strcmp(p.param, m->param), "%s: names '%s': %s", m->body, p.param, p.text);
        CHECK_MSG(strstr(p.text, m->says), "%s: says '%s'", m->body, p.text);
        CHECK_MSG(!*m->param || strstr(p.text, m->param), "%s: says '%s'", m->body, p.text);
    }
}

static void parse_request(request *rq, api_kind api, const char *body)
{
    problem p = {0};
    *rq = (request){0};
    CHECK_MSG(request_parse(rq, api, body, strlen(body), &limits, &p), "%s: %s", body, p.text);
}

TEST(request_chat_reads_every_field)
{
    AUTO(request_free) request rq;
    parse_request(
        &rq, API_CHAT,
        "{\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"n\":3,"
        "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"seed\":42,"
        "\"presence_penalty\":1,\"frequency_penalty\":-1,\"max_completion_tokens\":9,"
        "\"stop\":[\"a\",\"\",\"b\"],\"logprobs\":true,\"top_logprobs\":2,"
        "\"logit_bias\":{\"3\":1.5,\"4\":-100},\"reasoning_effort\":\"low\","
        "\"parallel_tool_calls\":false,\"tool_choice\":\"none\"," F "," M
        ",\"unknown\":{},\"user\":null}");
    CHECK_STR(rq.model, "m");
    CHECK(rq.stream && rq.include_usage && rq.logprobs && rq.seed_given && rq.one_call);
    CHECK_EQ(rq.n, 3);
    CHECK_EQ(rq.max_tokens, 9);
    CHECK_EQ(rq.n_stop, 2);
    CHECK_EQ(rq.sampling.seed, 42);
    CHECK_EQ(rq.sampling.top_k, 7);
    CHECK_EQ(rq.sampling.n_bias, 2);
    CHECK(rq.sampling.bias[0].bias == 1.5f && rq.sampling.bias[1].bias == -INFINITY);
    CHECK(rq.sampling.temperature == 0.5f && rq.sampling.min_p == 0.125f);
    CHECK_EQ(rq.think, THINK_ON);
    CHECK_EQ(rq.choice, TOOLS_NONE);
    CHECK_TALK(&rq.talk, "[{\"role\":\"user\",\"content\":\"x\"}]");
    CHECK_STR(str_text(&rq.tools), "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
}

TEST(request_allowed_tools_are_some_of_all)
{
    AUTO(request_free) request rq;
    parse_request(
        &rq, API_RESPONSES,
        "{" I ",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"function\","
        "\"name\":\"g\"},{\"type\":\"web_search\"}],\"tool_choice\":{\"type\":\"allowed_tools\","
        "\"mode\":\"required\",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\","
        "\"name\":\"g\"}]}}");
    CHECK_EQ(rq.choice, TOOLS_REQUIRED);
    CHECK_STR(str_text(&rq.tools),
              "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\","
              "\"function\":{\"name\":\"g\"}}]");
    CHECK_STR(str_text(&rq.allowed), "[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]");
    request_free(&rq);
    parse_request(&rq, API_CHAT,
                  "{" M "," F
                  ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":"
                  "\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}}}");
    CHECK_EQ(rq.choice, TOOLS_AUTO);
    CHECK_STR(str_text(&rq.allowed), str_text(&rq.tools));
    request_free(&rq);
    parse_request(&rq, API_RESPONSES,
                  "{" I
                  ",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":"
                  "\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":\"web_search\"}]}}");
    CHECK_EQ(rq.choice, TOOLS_NONE);
}

TEST(request_numbers_keep_their_spelling)
{
    AUTO(request_free) request rq;
    parse_request(
        &rq, API_MESSAGES,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
        "[{\"type\":\"thinking\",\"thinking\":\"hm\"},{\"type\":\"tool_use\",\"id\":\"t\",\"name\":"
        "\"f\",\"input\":{\"a\":12345678901234567890.10}}]},{\"role\":\"user\",\"content\":[{"
        "\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"r\"}]},{\"type\":\"text\",\"text\":\"go on\"}]}]}");
    CHECK_TALK(
        &rq.talk,
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"reasoning_content\":"
        "\"hm\",\"content\":\"\",\"tool_calls\":[{\"id\":\"t\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":12345678901234567890.10}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":\"r\"},{\"role\":\"user\","
        "\"content\":\"go on\"}]");
}

TEST(request_responses_items_become_messages)
{
    AUTO(request_free) request rq;
    parse_request(
        &rq, API_RESPONSES,
        "{\"instructions\":\"be\",\"input\":[{\"role\":\"developer\",\"content\":[{\"type\":"
        "\"input_text\",\"text\":\"d\"}]},{\"type\":\"message\",\"role\":\"user\",\"content\":"
        "\"q\"},{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\","
        "\"text\":\"hm\"}]},{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\","
        "\"arguments\":\"{}\"},{\"type\":\"function_call\",\"call_id\":\"2\",\"name\":\"g\","
        "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":"
        "\"o\"},{\"type\":\"function_call_output\",\"call_id\":\"2\",\"output\":[{\"type\":"
        "\"input_text\",\"text\":\"p\"}]}],\"tools\":[{\"type\":\"web_search\"},{\"type\":"
        "\"function\",\"name\":\"f\"}]}");
    CHECK_TALK(
        &rq.talk,
        "[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"developer\",\"content\":\"d\"},"
        "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"reasoning_content\":"
        "\"hm\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"id\":\"2\",\"type\":"
        "\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
        "\"tool_call_id\":\"1\",\"content\":\"o\"},{\"role\":\"tool\",\"tool_call_id\":\"2\","
        "\"content\":\"p\"}]");
    CHECK_STR(str_text(&rq.tools), "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
}

/* Tools that the client runs are functions to the model; those of a host are left out, and said. */
TEST(request_tools_that_are_no_functions)
{
    static const struct {
        api_kind api;
        const char *tool, *told,
            *left_out; /* parts of the declarations; the type that is left out */
    } all[] = {
        {API_RESPONSES,
         "{\"type\":\"custom\",\"name\":\"patch\",\"description\":\"Patches.\",\"format\":"
         "{\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"start: LINE\"}}",
         "start: LINE", NULL},
        {API_RESPONSES, "{\"type\":\"local_shell\"}", "\"name\":\"local_shell\"", NULL},
        {API_RESPONSES, "{\"type\":\"shell\"}", "\"commands\"", NULL},
        {API_RESPONSES, "{\"type\":\"shell\",\"environment\":{\"type\":\"container_auto\"}}", NULL,
         "shell"},
        {API_RESPONSES, "{\"type\":\"apply_patch\"}", "\"diff\"", NULL},
        {API_RESPONSES, "{\"type\":\"tool_search\",\"execution\":\"client\"}", "tool_search", NULL},
        {API_RESPONSES, "{\"type\":\"tool_search\"}", NULL, "tool_search"},
        {API_RESPONSES,
         "{\"type\":\"namespace\",\"name\":\"crm\",\"tools\":[{\"type\":\"function\","
         "\"name\":\"list\"}]}",
         "\"crm.list\"", NULL},
        {API_RESPONSES, "{\"type\":\"web_search_preview_2025_03_11\"}", NULL, "web_search_preview"},
        {API_RESPONSES, "{\"type\":\"file_search\",\"vector_store_ids\":[\"v\"]}", NULL,
         "file_search"},
        {API_RESPONSES, "{\"type\":\"code_interpreter\",\"container\":\"c\"}", NULL,
         "code_interpreter"},
        {API_RESPONSES, "{\"type\":\"image_generation\"}", NULL, "image_generation"},
        {API_RESPONSES, "{\"type\":\"mcp\",\"server_label\":\"l\"}", NULL, "mcp"},
        {API_RESPONSES, "{\"type\":\"computer_use_preview\"}", NULL, "computer_use_preview"},
        {API_RESPONSES, "{\"type\":\"of_next_year\"}", NULL, "of_next_year"},
        {API_MESSAGES, "{\"type\":\"bash_20250124\",\"name\":\"bash\"}", "\"restart\"", NULL},
        {API_MESSAGES, "{\"type\":\"text_editor_20250124\",\"name\":\"str_replace_editor\"}",
         "undo_edit", NULL},
        {API_MESSAGES,
         "{\"type\":\"text_editor_20250728\",\"name\":\"str_replace_based_edit_tool\","
         "\"max_characters\":100}",
         "str_replace_based_edit_tool", NULL},
        {API_MESSAGES,
         "{\"type\":\"computer_20250124\",\"name\":\"computer\",\"display_width_px\":1024,"
         "\"display_height_px\":768}",
         "1024 times 768", NULL},
        {API_MESSAGES, "{\"type\":\"memory_20250818\",\"name\":\"memory\"}", "/memories", NULL},
        {API_MESSAGES, "{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}", NULL,
         "web_search_20250305"},
        {API_MESSAGES, "{\"type\":\"web_fetch_20250910\",\"name\":\"web_fetch\"}", NULL,
         "web_fetch_20250910"},
        {API_MESSAGES, "{\"type\":\"code_execution_20250825\",\"name\":\"code_execution\"}", NULL,
         "code_execution_20250825"},
    };
    char body[1024];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        AUTO(request_free) request rq;
        snprintf(body, sizeof body, "{%s,\"tools\":[%s]}", all[i].api == API_RESPONSES ? I : M,
                 all[i].tool);
        parse_request(&rq, all[i].api, body);
        if (all[i].told)
            CHECK_MSG(strstr(str_text(&rq.tools), all[i].told) && !rq.left_out.n, "%s: %s",
                      all[i].tool, str_text(&rq.tools));
        else
            CHECK_MSG(!rq.tools.n && strstr(str_text(&rq.left_out), all[i].left_out), "%s: %s",
                      all[i].tool, str_text(&rq.left_out));
    }
}

/* Items of agents that bring tools, calls and results of other types; and those that say nothing.
 */
TEST(request_items_of_agents_become_messages)
{
    AUTO(request_free) request rq;
    parse_request(
        &rq, API_RESPONSES,
        "{\"input\":[{\"type\":\"additional_tools\",\"role\":\"developer\",\"tools\":[{\"type\":"
        "\"function\",\"name\":\"late\"}]},{\"type\":\"ghost_snapshot\"},{\"type\":\"web_search_"
        "call\","
        "\"id\":\"ws_1\"},{\"type\":\"agent_message\",\"author\":\"boss\",\"content\":[{\"type\":"
        "\"input_text\",\"text\":\"do "
        "it\"},{\"type\":\"encrypted_content\",\"encrypted_content\":\"x\"}]},"
        "{\"type\":\"local_shell_call\",\"call_id\":\"1\",\"action\":{\"type\":\"exec\","
        "\"command\":"
        "[\"ls\"],\"env\":{}}},{\"type\":\"custom_tool_call\",\"call_id\":\"2\",\"name\":\"patch\","
        "\"input\":\"a\"},{\"type\":\"local_shell_call_output\",\"id\":\"1\",\"output\":\"o\"},"
        "{\"type\":\"custom_tool_call_output\",\"call_id\":\"2\",\"output\":\"p\"},{\"type\":"
        "\"shell_call\",\"call_id\":\"3\",\"action\":{\"commands\":[\"w\"]}},{\"type\":"
        "\"shell_call_output\",\"call_id\":\"3\",\"output\":[{\"stdout\":\"q\",\"stderr\":\"\","
        "\"outcome\":{\"type\":\"exit\",\"exit_code\":1}}]},{\"type\":\"tool_search_call\",\"call_"
        "id\":"
        "\"4\",\"execution\":\"client\",\"arguments\":{\"query\":\"x\"}},{\"type\":"
        "\"tool_search_output\",\"call_id\":\"4\",\"tools\":[{\"type\":\"function\",\"name\":"
        "\"found\"}"
        "]}]}");
    CHECK_TALK(
        &rq.talk,
        "[{\"role\":\"user\",\"content\":\"Message from boss:\\ndo it\"},{\"role\":\"assistant\","
        "\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{"
        "\"name\":"
        "\"local_shell\",\"arguments\":{\"command\":[\"ls\"]}}},{\"id\":\"2\",\"type\":"
        "\"function\","
        "\"function\":{\"name\":\"patch\",\"arguments\":{\"input\":\"a\"}}}]},{\"role\":\"tool\","
        "\"tool_call_id\":\"1\",\"content\":\"o\"},{\"role\":\"tool\",\"tool_call_id\":\"2\","
        "\"content\":\"p\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"3\","
        "\"type\":\"function\",\"function\":{\"name\":\"shell\",\"arguments\":{\"commands\":[\"w\"]"
        "}}}]"
        "},{\"role\":\"tool\",\"tool_call_id\":\"3\",\"content\":\"stdout:\\nq\\nexit code: "
        "1\\n\"},"
        "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"4\",\"type\":"
        "\"function\","
        "\"function\":{\"name\":\"tool_search\",\"arguments\":{\"query\":\"x\"}}}]},{\"role\":"
        "\"tool\","
        "\"tool_call_id\":\"4\",\"content\":\"Tools found: found\"}]");
    CHECK(strstr(str_text(&rq.tools), "\"late\"") && strstr(rq.tools.at, "\"found\""));
    CHECK(strstr(str_text(&rq.left_out), "ghost_snapshot"));
    CHECK(strstr(rq.left_out.at, "web_search_call") && strstr(rq.left_out.at, "encrypted_content"));
    CHECK_EQ(rq.n_left_out, 3);
}

static bool is_refused(api_kind api, const char *body, problem *p);

TEST(request_verbosity_is_told_to_the_model)
{
    request rq;
    problem p;
    parse_request(&rq, API_CHAT, "{" M ",\"verbosity\":\"low\"}");
    CHECK(strstr(rq.manner, "briefly"));
    request_free(&rq);
    parse_request(&rq, API_RESPONSES, "{" I ",\"text\":{\"verbosity\":\"high\"}}");
    CHECK(strstr(rq.manner, "detail"));
    request_free(&rq);
    parse_request(&rq, API_RESPONSES, "{" I ",\"text\":{\"verbosity\":\"medium\"}}");
    CHECK(!rq.manner);
    request_free(&rq);
    CHECK(is_refused(API_RESPONSES, "{" I ",\"text\":{\"verbosity\":0}}", &p));
    CHECK_STR(p.param, "text.verbosity");
}

#define FORM "{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\",\"properties\":{}}}"

TEST(request_output_format_of_the_messages_beta)
{
    request rq;
    problem p;
    parse_request(&rq, API_MESSAGES, "{" M ",\"output_format\":" FORM "}");
    CHECK(rq.schema && strstr(rq.schema, "properties") && !rq.n_left_out);
    request_free(&rq);
    CHECK(is_refused(API_MESSAGES,
                     "{" M ",\"output_format\":" FORM ",\"output_config\":{\"format\":" FORM "}}",
                     &p));
    CHECK_STR(p.param, "output_format");
    CHECK(is_refused(API_MESSAGES, "{" M ",\"output_format\":\"json\"}", &p));
}

TEST(request_failed_mcp_calls_say_why)
{
    AUTO(request_free) request rq;
    parse_request(&rq, API_RESPONSES,
                  "{\"input\":[{\"type\":\"mcp_call\",\"id\":\"m\",\"server_label\":\"l\",\"name\":"
                  "\"f\",\"arguments\":\"{}\",\"output\":null,\"error\":{\"type\":\"http_error\","
                  "\"message\":\"no route\"}}]}");
    CHECK_TALK_HAS(&rq.talk, "\"content\":\"Error: no route");
}

TEST(request_members_without_a_reader_are_named)
{
    static const struct {
        api_kind api;
        const char *body, *named; /* NULL: nothing */
    } all[] = {
        {API_MESSAGES, "{" M ",\"thinking\":{\"type\":\"enabled\",\"display\":\"omitted\"}}",
         "'thinking.display' has no effect"},
        {API_MESSAGES,
         "{" M ",\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"x\":1},"
         "\"cache_control\":{\"type\":\"ephemeral\"},\"defer_loading\":false}]}",
         NULL},
        {API_MESSAGES, "{" M ",\"tools\":[{\"name\":\"f\",\"input_examples\":[{\"a\":1}]}]}",
         "'tools[0].input_examples' has no effect"},
        {API_MESSAGES, "{" M ",\"tools\":[{\"type\":\"web_search_1\",\"max_uses\":3}]}",
         "'tools[0]', a tool"},
        {API_RESPONSES, "{" I ",\"text\":{\"format\":{\"type\":\"text\"},\"tone\":\"dry\"}}",
         "'text.tone' has no effect"},
        {API_CHAT, "{" M ",\"stream_options\":{\"include_usage\":true,\"every\":2}}",
         "'stream_options.every' has no effect"},
        {API_CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
         "\"content\":\"\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{"
         "\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\","
         "\"content\":\"r\"}],\"logit_bias\":{\"5\":1},\"metadata\":{\"a\":{\"b\":1}}}",
         NULL},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        AUTO(request_free) request rq;
        parse_request(&rq, all[i].api, all[i].body);
        CHECK_MSG(all[i].named ? strstr(str_text(&rq.left_out), all[i].named) != NULL
                               : !rq.n_left_out,
                  "%s: %s", all[i].body, str_text(&rq.left_out));
        CHECK_MSG(rq.n_left_out <= 1, "%s: %s", all[i].body, str_text(&rq.left_out));
    }
}

TEST(request_of_an_openrouter_client)
{
    request rq;
    problem p;
    parse_request(&rq, API_CHAT,
                  "{" M ",\"stream\":true,\"usage\":{\"include\":true},\"provider\":{\"order\":["
                  "\"x\"]},\"route\":\"fallback\",\"models\":[\"a\"]}");
    CHECK(rq.include_usage && !rq.n_left_out);
    request_free(&rq);
    CHECK(is_refused(API_CHAT, "{" M ",\"usage\":true}", &p));
    CHECK_STR(p.param, "usage");
}

TEST(request_documents_of_text_are_read)
{
    AUTO(request_free) request rq;
    parse_request(
        &rq, API_MESSAGES,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"title\":\"T\","
        "\"source\":{\"type\":\"text\",\"media_type\":\"text/plain\",\"data\":\"one\"}},{\"type\":"
        "\"text\",\"text\":\"hi\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\","
        "\"id\":\"t\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":"
        "\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"document\",\"source\":{"
        "\"type\":"
        "\"content\",\"content\":[{\"type\":\"text\",\"text\":\"two\"}]}},{\"type\":\"search_"
        "result\","
        "\"title\":\"S\",\"source\":\"u\",\"content\":[{\"type\":\"text\",\"text\":\"three\"}]},"
        "{\"type\":\"tool_reference\",\"tool_name\":\"f\"}]}]}]}");
    CHECK_TALK(
        &rq.talk,
        "[{\"role\":\"user\",\"content\":\"<document>\\nTitle: T\\none\\n</document>\\nhi\"},"
        "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"t\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},{\"role\":\"tool\","
        "\"tool_call_id\":\"t\",\"content\":\"<document>\\ntwo\\n</document>\\n<search_result>\\n"
        "title: S\\nsource: u\\nthree\\n</search_result>\\n\"}]");
    CHECK(strstr(str_text(&rq.left_out), "tool_reference"));
}

TEST(request_attribution_lines_leave_the_prompt)
{
    AUTO(request_free) request a, b;
    parse_request(
        &a, API_MESSAGES,
        "{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=1;\"},"
        "{\"type\":\"text\",\"text\":\"s\"}]," M "}");
    parse_request(
        &b, API_MESSAGES,
        "{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=2;\"},"
        "{\"type\":\"text\",\"text\":\"s\"}]," M "}");
    CHECK_EQ(a.talk.n, b.talk.n);
    for (size_t i = 0; i < a.talk.n; i++)
        CHECK_STR(a.talk.turn[i].part->text.s, b.talk.turn[i].part->text.s);
    CHECK_STR(a.talk.turn[0].part->text.s, "s");
}

TEST(request_prefill_is_how_the_answer_begins)
{
    AUTO(request_free) request rq;
    parse_request(
        &rq, API_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
        "\"Well, \"}]}");
    CHECK_STR(rq.prefill, "Well, ");
    CHECK_TALK(&rq.talk, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
                         "\"assistant\",\"content\":\"Well, \"}]");
    CHECK(rq.continue_last && !rq.no_generation_prompt);
}

static bool is_refused(api_kind api, const char *body, problem *p)
{
    AUTO(request_free) request rq = {0};
    *p = (problem){0};
    bool ok = request_parse(&rq, api, body, strlen(body), &limits, p);
    return !ok;
}

static const char *const shells[] = {[API_CHAT] = "{" M ",%s}",
                                     [API_COMPLETIONS] = "{" P ",%s}",
                                     [API_RESPONSES] = "{" I ",%s}",
                                     [API_MESSAGES] = "{" M ",%s}"};

TEST(request_no_field_is_ignored_in_silence)
{
    static const char *const refusals[][2] = {
        {"skip_special_tokens", "false"},
        {"include_stop_str_in_output", "true"},
        {"use_beam_search", "true"},
        {"grammar_lazy", "true"},
        {"guided_whitespace_pattern", "\" *\""},
        {"reasoning_format", "\"none\""},
        {"lora", "[{\"id\":16,\"scale\":1}]"},
        {"lora", "[{\"scale\":1}]"},
        {"lora", "[{\"id\":0,\"weight\":1}]"},
        {"never_heard_of", "7"},
        {"never_heard_of", "0"},
        {"never_heard_of", "false"},
        {"use_sampling", "false"},
        {"max_thoughts", "0"},
        {"web_search_options", "{\"search_context_size\":\"low\"}"},
        {"guided_jsn", "{\"type\":\"object\"}"},
    };
    static const char *const neutral[] = {
        "\"typical_p\":1",
        "\"typical_p\":1.0",
        "\"mirostat\":0,\"mirostat_tau\":5",
        "\"dry_multiplier\":0.0,\"dry_sequence_breakers\":[\"a\"]",
        "\"xtc_probability\":0,\"xtc_threshold\":0.1",
        "\"min_tokens\":0",
        "\"bad_words\":[]",
        "\"skip_special_tokens\":true",
        "\"lora\":[]",
        "\"samplers\":\"\"",
        "\"user\":\"me\",\"metadata\":{\"a\":\"b\"}",
        "\"store\":true",
        "\"service_tier\":\"auto\"",
        "\"never_heard_of\":null",
        "\"never_heard_of\":[]",
        "\"do_sample\":true,\"num_beams\":1,\"return_token_ids\":false",
        "\"cache_prompt\":true,\"id_slot\":-1,\"n_keep\":4,\"timings_per_token\":true",
        "\"speculative.n_max\":4",
    };
    char body[512], field[256];
    problem p;
    for (int api = 0; api < 4; api++) {
        for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
            snprintf(field, sizeof field, "\"%s\":%s", refusals[i][0], refusals[i][1]);
            snprintf(body, sizeof body, shells[api], field);
            CHECK_MSG(is_refused((api_kind)api, body, &p) && p.status == 400, "%s", body);
            CHECK_STR(p.param, refusals[i][0]);
            CHECK_MSG(strstr(p.text, refusals[i][0]), "%s", p.text);
        }
        for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++) {
            snprintf(body, sizeof body, shells[api], neutral[i]);
            CHECK_MSG(!is_refused((api_kind)api, body, &p), "%s: %s", body, p.text);
        }
    }
    /* A field of one endpoint is unknown to another. */
    CHECK(is_refused(API_RESPONSES, "{" I ",\"response_format\":{\"type\":\"json_object\"}}", &p));
    CHECK_STR(p.param, "response_format");
    CHECK_STR(p.code, "unknown_parameter");
    CHECK(is_refused(API_MESSAGES, "{" M ",\"stop\":\"x\"}", &p));
    CHECK(is_refused(API_COMPLETIONS, "{" P "," F "}", &p));
    AUTO(request_free) request rq = {0};
    p = (problem){0};
    request_limits lenient = limits;
    lenient.lenient = true;
    static const char odd[] = "{" M ",\"never_heard_of\":7}";
    CHECK(request_parse(&rq, API_CHAT, odd, sizeof odd - 1, &lenient, &p));
}

/* What other servers name differently, with the values that are false or 0 and ask for something.
 */
TEST(request_false_and_zero_turn_thoughts_off)
{
    static const char *const off[] = {
        "\"think\":false",
        "\"think\":\"none\"",
        "\"thinking\":false",
        "\"thinking_budget\":0",
        "\"reasoning_budget\":0",
        "\"thinking_budget_tokens\":0",
        "\"enable_thinking\":false",
        "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":0}",
        "\"chat_template_kwargs\":{\"enable_thinking\":false}",
        "\"chat_template_kwargs\":{\"thinking\":false}",
        "\"chat_template_kwargs\":{\"thinking_budget\":0}",
    };
    static const char *const reasoning[] = {"\"reasoning\":{\"enabled\":false}",
                                            "\"reasoning\":{\"max_tokens\":0}",
                                            "\"reasoning\":{\"effort\":\"none\"}"};
    static const api_kind conversations[] = {API_CHAT, API_RESPONSES, API_MESSAGES};
    char body[512];
    AUTO(request_free) request rq;
    problem p;
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
            snprintf(body, sizeof body, shells[conversations[k]], off[i]);
            parse_request(&rq, conversations[k], body);
            CHECK_MSG(rq.think == THINK_OFF, "%s", body);
            request_free(&rq);
        }
        for (size_t i = 0; i < 3 && conversations[k] != API_MESSAGES; i++) {
            snprintf(body, sizeof body, shells[conversations[k]], reasoning[i]);
            parse_request(&rq, conversations[k], body);
            CHECK_MSG(rq.think == THINK_OFF, "%s", body);
            request_free(&rq);
        }
    }
    parse_request(&rq, API_CHAT, "{" M ",\"temperature\":0.7,\"do_sample\":false}");
    CHECK(rq.sampling.temperature == 0);
    request_free(&rq);
    CHECK(is_refused(API_CHAT, "{" M ",\"web_search_options\":{}}", &p));
    CHECK_STR(p.param, "web_search_options");
    CHECK(is_refused(API_RESPONSES, "{" I ",\"reasoning\":{\"hide\":false}}", &p));
    CHECK(strstr(p.text, "hide"));
    /* A variable that the file's template reads, and carat's rendering does not. */
    request_limits with = limits;
    static const char template[] = "{%- if add_vision_id %}Picture{% endif %}{{ think_more }}";
    static const char reads[] = "{" M ",\"chat_template_kwargs\":{\"add_vision_id\":false}}";
    static const char other[] = "{" M ",\"chat_template_kwargs\":{\"vision\":false,\"more\":1}}";
    with.chat_template = template;
    with.n_chat_template = sizeof template - 1;
    rq = (request){0};
    p = (problem){0};
    CHECK(!request_parse(&rq, API_CHAT, reads, sizeof reads - 1, &with, &p));
    CHECK_STR(p.param, "chat_template_kwargs.add_vision_id");
    request_free(&rq);
    rq = (request){0};
    p = (problem){0};
    CHECK(request_parse(&rq, API_CHAT, other, sizeof other - 1, &with, &p));
}

/* Every row of the table: both spellings, in each API, its ends, and what lies beyond. */
TEST(request_takes_every_number_of_sampling_within_its_range)
{
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    request_limits lim = limits;
    carat_sampling_neutral(&lim.sampling);
    for (int32_t i = 0; i < n; i++)
        for (int k = 0; k < 4 * 2 * 4; k++) {
            const carat_sampling_setting *is = &all[i];
            const char *name = k & 4 ? is->also : is->name;
            double beyond = is->whole ? 1 : 0.5;
            double v = k & 1 ? is->max + (k & 2 ? beyond : 0) : is->min - (k & 2 ? beyond : 0);
            char body[512], field[96];
            request rq = {0};
            problem p = {0};
            if (!name)
                continue;
            snprintf(field, sizeof field, "\"%s\":%.10g", name, v);
            int len = snprintf(body, sizeof body, shells[k >> 3], field);
            bool taken = request_parse(&rq, (api_kind)(k >> 3), body, (size_t)len, &lim, &p);
            CHECK_MSG(taken == !(k & 2), "%s: %s", field, p.text);
            CHECK_MSG(taken || (!strcmp(p.param, name) && strstr(p.text, name)), "%s: %s names %s",
                      field, p.text, p.param);
            if (taken && strcmp(is->name, "dry_base")) /* below 1: the model's */
                CHECK_MSG(fabs(carat_sampling_get(&rq.sampling, is) - v) < 1e-6, "%s", field);
            request_free(&rq);
        }
}

TEST(request_sampling_of_other_servers)
{
    static const char fields[] =
        "\"typ_p\":0.9,\"top_n_sigma\":1.5,\"xtc_probability\":0.5,\"xtc_threshold\":0.2,"
        "\"dynatemp_range\":0.25,\"dynatemp_exponent\":2,\"min_keep\":3,\"dry_multiplier\":0.8,"
        "\"dry_base\":0.5,\"dry_allowed_length\":4,\"dry_penalty_last_n\":64,"
        "\"dry_sequence_breakers\":[\"\\n\",\"b\"],\"mirostat_mode\":2,\"mirostat_tau\":4,"
        "\"mirostat_eta\":0.25,\"samplers\":[\"temperature\",\"top-k\",\"typ_p\"],"
        "\"logit_bias\":[[3,false],[\"a b\",1.5],[4,2]],\"min_tokens\":5,\"stop_token_ids\":[7,8],"
        "\"allowed_token_ids\":[9],\"bad_words\":[\"x\",\" y\"]";
    request_limits lim = limits;
    lim.sampling.dry_base = 1.75f;
    for (int api = 0; api < 4; api++) {
        char body[1200];
        AUTO(request_free) request rq = {0};
        problem p = {0};
        int n = snprintf(body, sizeof body, shells[api], fields);
        CHECK_MSG(request_parse(&rq, (api_kind)api, body, (size_t)n, &lim, &p), "%s", p.text);
        const carat_sampling *s = &rq.sampling;
        CHECK(s->typical_p == 0.9f && s->top_n_sigma == 1.5f && s->xtc_probability == 0.5f);
        CHECK(s->xtc_threshold == 0.2f && s->dynatemp_range == 0.25f && s->dynatemp_exponent == 2);
        CHECK(s->min_keep == 3 && s->dry_multiplier == 0.8f && s->dry_base == 1.75f);
        CHECK(s->dry_allowed_length == 4 && s->dry_last_n == 64 && s->n_dry_breakers == 2);
        CHECK_STR(s->dry_breakers[0], "\n");
        CHECK(s->mirostat == 2 && s->mirostat_tau == 4 && s->mirostat_eta == 0.25f);
        CHECK(s->order[0] == CARAT_SAMPLER_TEMPERATURE && s->order[1] == CARAT_SAMPLER_TOP_K);
        CHECK(s->order[2] == CARAT_SAMPLER_TYPICAL_P && s->order[3] == CARAT_SAMPLER_NONE);
        CHECK(s->n_bias == 2 && s->bias[0].id == 3 && s->bias[0].bias == -INFINITY);
        CHECK(s->bias[1].id == 4 && rq.n_text_bias == 1 && rq.text_bias[0].bias == 1.5f);
        CHECK_STR(rq.text_bias[0].text, "a b");
        CHECK(rq.min_tokens == 5 && rq.n_stop_ids == 2 && rq.stop_ids[1] == 8);
        CHECK(rq.n_only_ids == 1 && rq.only_ids[0] == 9 && rq.n_bad_words == 2);
        CHECK_STR(rq.bad_words[1], " y");
        request_free(&rq);
        n = snprintf(body, sizeof body, shells[api], "\"samplers\":\"dkt\"");
        CHECK_MSG(request_parse(&rq, (api_kind)api, body, (size_t)n, &lim, &p), "%s", p.text);
        CHECK(s->order[0] == CARAT_SAMPLER_DRY && s->order[1] == CARAT_SAMPLER_TOP_K);
    }
    AUTO(request_free) request rq;
    parse_request(&rq, API_COMPLETIONS, "{" P ",\"max_tokens\":0,\"echo\":true,\"logprobs\":3}");
    CHECK(rq.no_answer && rq.echo && rq.logprobs && rq.sampling.n_top_logprobs == 3);
    request_free(&rq);
    parse_request(&rq, API_COMPLETIONS, "{" P ",\"n_probs\":3,\"prompt_logprobs\":0}");
    CHECK(rq.logprobs && rq.sampling.n_top_logprobs == 3 && rq.prompt_logprobs == 0);
    request_free(&rq);
    parse_request(&rq, API_CHAT, "{" M ",\"stream\":true,\"prompt_logprobs\":5}");
    CHECK(!rq.logprobs && rq.prompt_logprobs == 5 && !rq.no_answer);
}

TEST(request_forms_of_other_servers)
{
    static const struct {
        const char *field, *says;
        format_kind kind;
        const char *schema;
    } forms[] = {
        {"guided_json", "{\"type\":\"object\"}", FORMAT_JSON_SCHEMA, "{\"type\":\"object\"}"},
        {"guided_json", "\"{\\\"type\\\":\\\"object\\\"}\"", FORMAT_JSON_SCHEMA,
         "{\"type\":\"object\"}"},
        {"json_schema", "{}", FORMAT_JSON_SCHEMA, "{}"},
        {"guided_regex", "\"a+\"", FORMAT_REGEX, "a+"},
        {"guided_choice", "[\"a\\\"\",\"b\\n\"]", FORMAT_GRAMMAR,
         "root ::= \"a\\\"\" | \"b\\x0A\""},
        {"guided_grammar", "\"root ::= [0-9]\"", FORMAT_GRAMMAR, "root ::= [0-9]"},
        {"grammar", "\"root ::= [0-9]\"", FORMAT_GRAMMAR, "root ::= [0-9]"},
        {"structured_outputs", "{\"json\":{\"type\":\"object\"},\"regex\":null}",
         FORMAT_JSON_SCHEMA, "{\"type\":\"object\"}"},
        {"structured_outputs", "{\"regex\":\"a|b\"}", FORMAT_REGEX, "a|b"},
        {"structured_outputs", "{\"choice\":[\"x\"]}", FORMAT_GRAMMAR, "root ::= \"x\""},
        {"structured_outputs", "{\"json_object\":true}", FORMAT_JSON_OBJECT, NULL},
        {"structured_outputs", "{}", FORMAT_TEXT, NULL},
    };
    char body[512], field[256];
    request rq;
    problem p;
    for (int api = 0; api < 4; api++)
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            snprintf(field, sizeof field, "\"%s\":%s", forms[i].field, forms[i].says);
            snprintf(body, sizeof body, shells[api], field);
            parse_request(&rq, (api_kind)api, body);
            CHECK_EQ(rq.format, forms[i].kind);
            if (forms[i].schema)
                CHECK_STR(rq.schema, forms[i].schema);
            request_free(&rq);
        }
    CHECK(is_refused(API_CHAT, "{" M ",\"guided_regex\":\"a\",\"guided_choice\":[\"a\"]}", &p));
    CHECK_STR(p.param, "guided_choice");
    CHECK(is_refused(API_CHAT, "{" M ",\"guided_choice\":[]}", &p));
    CHECK(is_refused(API_CHAT, "{" M ",\"structured_outputs\":{\"structural_tag\":\"x\"}}", &p));
    CHECK(strstr(p.text, "structural_tag"));
}

TEST(request_prediction)
{
    static const struct {
        const char *field, *text;
    } good[] = {
        {"\"prediction\":null", NULL},
        {"\"prediction\":{\"type\":\"content\",\"content\":\"\"}", NULL},
        {"\"prediction\":{\"type\":\"content\",\"content\":\"int x;\"}", "int x;"},
        {"\"prediction\":{\"type\":\"content\",\"content\":[]}", NULL},
        {"\"prediction\":{\"type\":\"content\",\"content\":[{\"type\":\"text\",\"text\":\"int \"},"
         "{\"type\":\"text\",\"text\":\"x;\"}]}",
         "int x;"},
    };
    static const char *const bad[][2] = {
        {"\"prediction\":\"int x;\"", "prediction"},
        {"\"prediction\":{}", "prediction.type"},
        {"\"prediction\":{\"type\":\"file\",\"content\":\"x\"}", "prediction.type"},
        {"\"prediction\":{\"type\":\"content\"}", "prediction.content"},
        {"\"prediction\":{\"type\":\"content\",\"content\":3}", "prediction.content"},
        {"\"prediction\":{\"type\":\"content\",\"content\":[\"x\"]}", "prediction.content"},
        {"\"prediction\":{\"type\":\"content\",\"content\":[{\"type\":\"text\"}]}",
         "prediction.content"},
    };
    char body[512];
    problem p;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        AUTO(request_free) request rq = {0};
        p = (problem){0};
        int n = snprintf(body, sizeof body, shells[API_CHAT], good[i].field);
        CHECK_MSG(request_parse(&rq, API_CHAT, body, (size_t)n, &limits, &p), "%s: %s", body,
                  p.text);
        CHECK_EQ(rq.prediction != NULL, good[i].text != NULL);
        if (good[i].text) {
            CHECK_EQ(rq.n_prediction, strlen(good[i].text));
            CHECK(!memcmp(rq.prediction, good[i].text, rq.n_prediction));
        }
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(body, sizeof body, shells[API_CHAT], bad[i][0]);
        CHECK_MSG(is_refused(API_CHAT, body, &p), "%s", body);
        CHECK_STR(p.param, bad[i][1]);
    }
}

/* Speculative decoding, in every endpoint alike. */
TEST(request_speculation)
{
    static const struct {
        const char *field;
        bool off;
        int32_t n_max, tree_max;
    } good[] = {
        {"\"speculative\":true", false, 0, 0},
        {"\"speculative\":false", true, 0, 0},
        {"\"speculative\":null", false, 0, 0},
        {"\"speculative\":{}", false, 0, 0},
        {"\"speculative\":{\"enabled\":false}", true, 0, 0},
        {"\"speculative\":{\"n_max\":4,\"tree_max\":-1}", false, 4, -1},
        {"\"speculative\":{\"n_max\":63,\"tree_max\":63,\"n_min\":2,\"p_min\":0.5}", false, 63, 63},
        {"\"speculative\":{\"n_max\":0}", true, 0, 0},
        {"\"speculative.n_max\":7,\"speculative.p_min\":0.75", false, 7, 0},
        {"\"speculative.n_max\":0", true, 0, 0},
        {"\"speculative.n_max\":7,\"speculative\":{\"n_max\":3}", false, 3, 0},
        {"\"speculative\":{\"never\":null}", false, 0, 0},
    };
    static const char *const bad[][2] = {
        {"\"speculative\":1", "speculative"},
        {"\"speculative\":\"lookup\"", "speculative"},
        {"\"speculative\":[4]", "speculative"},
        {"\"speculative\":{\"n_max\":64}", "n_max"},
        {"\"speculative\":{\"n_max\":-1}", "n_max"},
        {"\"speculative\":{\"n_max\":1e400}", "n_max"},
        {"\"speculative\":{\"n_max\":\"4\"}", "n_max"},
        {"\"speculative\":{\"n_max\":99999999999999999999}", "n_max"},
        {"\"speculative\":{\"tree_max\":-2}", "tree_max"},
        {"\"speculative\":{\"tree_max\":2.5}", "tree_max"},
        {"\"speculative\":{\"p_min\":1.5}", "p_min"},
        {"\"speculative\":{\"n_min\":-1}", "n_min"},
        {"\"speculative\":{\"enabled\":1}", "enabled"},
        {"\"speculative\":{\"draft\":\"/etc/passwd\"}", "speculative"},
        {"\"speculative\":{\"fixed\":true}", "speculative"},
        {"\"speculative.n_max\":-3", "speculative.n_max"},
        {"\"speculative.n_max\":{}", "speculative.n_max"},
    };
    char body[512];
    problem p;
    for (int api = 0; api < 4; api++) {
        for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
            AUTO(request_free) request rq = {0};
            p = (problem){0};
            int n = snprintf(body, sizeof body, shells[api], good[i].field);
            CHECK_MSG(request_parse(&rq, (api_kind)api, body, (size_t)n, &limits, &p), "%s: %s",
                      body, p.text);
            CHECK_EQ(rq.speculation.off, good[i].off);
            CHECK_EQ(rq.speculation.n_max, good[i].n_max);
            CHECK_EQ(rq.speculation.tree_max, good[i].tree_max);
            CHECK(!rq.speculation.fixed);
        }
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            snprintf(body, sizeof body, shells[api], bad[i][0]);
            CHECK_MSG(is_refused((api_kind)api, body, &p) && p.status == 400, "%s", body);
            CHECK_STR(p.param, bad[i][1]);
        }
    }
}

TEST(request_least_limit_of_tokens_counts)
{
    AUTO(request_free) request rq;
    parse_request(&rq, API_CHAT, "{" M ",\"n_predict\":5,\"max_tokens\":9}");
    CHECK_EQ(rq.max_tokens, 5);
    request_free(&rq);
    parse_request(&rq, API_MESSAGES, "{" M ",\"n_predict\":5,\"max_tokens\":9}");
    CHECK_EQ(rq.max_tokens, 5);
    request_free(&rq);
    parse_request(&rq, API_CHAT, "{" M ",\"n_predict\":-1}");
    CHECK_EQ(rq.max_tokens, 0);
}

TEST(request_functions_are_tools_in_the_older_way)
{
    request rq;
    problem p;
    parse_request(
        &rq, API_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
        "null,\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"role\":\"function\","
        "\"name\":\"f\",\"content\":\"r\"}],\"functions\":[{\"name\":\"f\"}],\"function_call\":"
        "{\"name\":\"f\"}}");
    CHECK(rq.functions && rq.one_call);
    CHECK_EQ(rq.choice, TOOLS_REQUIRED);
    CHECK_STR(rq.only, "f");
    CHECK_STR(str_text(&rq.tools), "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
    CHECK_TALK(
        &rq.talk,
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":null,"
        "\"tool_calls\":[{\"id\":\"function_1\",\"type\":\"function\",\"function\":{\"name\":"
        "\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"function_1\","
        "\"name\":\"f\",\"content\":\"r\"}]");
    request_free(&rq);
    CHECK(is_refused(API_CHAT, "{" M ",\"functions\":[{\"name\":\"f\"}]," F "}", &p));
    CHECK_STR(p.param, "functions");
    CHECK(is_refused(API_CHAT, "{" M ",\"function_call\":\"auto\"}", &p));
    CHECK_STR(p.param, "function_call");
    CHECK(is_refused(API_CHAT,
                     "{" M ",\"functions\":[{\"name\":\"f\"}],\"function_call\":{\"name\":"
                     "\"g\"}}",
                     &p));
}

TEST(request_a_tool_allowed_twice_is_one_tool)
{
    AUTO(request_free) request rq;
    parse_request(
        &rq, API_CHAT,
        "{" M "," F ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":"
        "\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":"
        "\"function\",\"function\":{\"name\":\"f\"}}]}}}");
    CHECK_STR(str_text(&rq.allowed), str_text(&rq.tools));
}

TEST(request_template_arguments)
{
    request rq;
    problem p;
    parse_request(&rq, API_CHAT,
                  "{" M ",\"chat_template_kwargs\":{\"preserve_thinking\":true,"
                  "\"enable_thinking\":true,\"add_generation_prompt\":false,\"other\":1}}");
    CHECK(rq.preserve_thinking && rq.no_generation_prompt && rq.think == THINK_ON);
    request_free(&rq);
    parse_request(&rq, API_CHAT, "{" M ",\"add_generation_prompt\":false}");
    CHECK(rq.no_generation_prompt);
    request_free(&rq);
    CHECK(is_refused(API_CHAT, "{" M ",\"chat_template_kwargs\":{\"tools\":[1]}}", &p));
    CHECK_STR(p.param, "chat_template_kwargs.tools");
    CHECK(is_refused(API_CHAT, "{" M ",\"continue_final_message\":true}", &p));
    CHECK_STR(p.param, "continue_final_message");
    CHECK(is_refused(API_CHAT, "{" M ",\"chat_template\":\"{{ x }}\"}", &p));
}

TEST(request_sentences_of_the_library_name_the_clients_fields)
{
    static const struct {
        api_kind api;
        const char *body, *says, *param, *text;
    } cases[] = {
        {API_RESPONSES,
         "{\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
         "{\"type\":\"web_search_call\"},{\"role\":\"user\",\"content\":\"b\"}]}",
         "messages[2].content is odd", "input[2]", "input[2] is odd"},
        {API_RESPONSES, "{\"instructions\":\"i\",\"input\":\"x\"}", "messages[0]: odd",
         "instructions", "instructions: odd"},
        {API_RESPONSES, "{" I "}", "messages: too deep", "input", "input: too deep"},
        {API_RESPONSES,
         "{" I ",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\",\"name\":"
         "\"f\"}]}",
         "tools[0] (f): odd", "tools[1]", "tools[1] (f): odd"},
        {API_MESSAGES, "{\"system\":\"s\"," M "}", "messages[1] is odd", "messages[0]",
         "messages[0] is odd"},
        {API_MESSAGES, "{\"system\":\"s\"," M "}", "messages[0] is odd", "system", "system is odd"},
        {API_OLLAMA_GENERATE, "{\"system\":\"s\",\"prompt\":\"p\"}", "messages[0]: odd", "system",
         "system: odd"},
        {API_OLLAMA_GENERATE, "{\"system\":\"s\",\"prompt\":\"p\"}", "messages[1]: odd", "prompt",
         "prompt: odd"},
        {API_CHAT, "{" M "}", "messages[0].content is odd", "messages[0].content",
         "messages[0].content is odd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(request_free) request rq;
        problem p = {0};
        err e = {0};
        parse_request(&rq, cases[i].api, cases[i].body);
        char says[TALK_WHERE];
        int turn;
        snprintf(says, sizeof says, "%s", cases[i].says);
        if (sscanf(says, "messages[%d]", &turn) ==
            1) /* the library names turns as the client does */
            talk_where(&rq.talk.turn[turn], strchr(cases[i].says, ']') + 1, says);
        err_set(&e, E_FORMAT, "%s", says);
        CHECK(!problem_of(&rq, &p, &e));
        CHECK_STR(p.param, cases[i].param);
        CHECK_STR(p.text, cases[i].text);
    }
}

static status parse_all(void *arg, err *e)
{
    static const char body[] =
        "{\"stop\":[\"a\"],\"logit_bias\":{\"1\":2}," F "," M ",\"response_format\":{\"type\":"
        "\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"object\"}}}}";
    request rq = {0};
    problem p = {0};
    (void)arg;
    bool ok = request_parse(&rq, API_CHAT, body, sizeof body - 1, &limits, &p);
    request_free(&rq);
    if (!ok)
        CHECK_EQ(p.status, 503);
    return ok ? OK : err_set(e, E_MEMORY, "%s", p.text);
}

TEST(request_oom_is_503)
{
    test_every_allocation(parse_all, NULL);
}

/* The tree of such a text is within its limit, the conversation is not. */
TEST(request_of_too_many_short_messages_is_400)
{
    static const struct {
        api_kind api;
        const char *list;
    } cases[] = {{API_MESSAGES, "messages"}, {API_RESPONSES, "input"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(request_free) request rq = {0};
        problem p = {0};
        AUTO(str_free) str body = {0};
        str_printf(&body, "{\"max_tokens\":1,\"%s\":[", cases[i].list);
        for (int k = 0; k < 140000; k++)
            str_puts(&body, k ? ",{\"role\":\"user\",\"content\":\"\"}"
                              : "{\"role\":\"user\",\"content\":\"\"}");
        str_puts(&body, "]}");
        CHECK(!body.bad && !request_parse(&rq, cases[i].api, body.at, body.n, &limits, &p));
        CHECK_EQ(p.status, 400);
        CHECK_STR(p.param, cases[i].list);
        CHECK_MSG(strstr(p.text, "too many for a text of this length"), "%s", p.text);
    }
}

/* Members of the action of a call; calls of one message. */
TEST(request_of_many_small_parts_takes_no_quadratic_time)
{
    static const struct {
        api_kind api;
        int n, status;
        const char *head, *each, *end;
    } cases[] = {
        {API_RESPONSES, 60000, 0,
         "{\"input\":[{\"type\":\"local_shell_call\",\"call_id\":\"c\",\"action\":{\"type\":"
         "\"exec\"",
         ",\"k%d\":1",
         "}},{\"type\":\"local_shell_call_output\",\"call_id\":\"c\",\"output\":\"\"}]}"},
        {API_OLLAMA_CHAT, REQUEST_MAX_CALLS, 400,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_"
         "calls\":["
         "{\"function\":{\"name\":\"f\"}}",
         ",{\"function\":{\"name\":\"f%d\"}}", "]},{\"role\":\"tool\"}]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(request_free) request rq = {0};
        problem p = {0};
        AUTO(str_free) str body = {0};
        str_puts(&body, cases[i].head);
        for (int k = 0; k < cases[i].n; k++)
            str_printf(&body, cases[i].each, k);
        str_puts(&body, cases[i].end);
        CHECK(!body.bad);
        clock_t begin = clock();
        CHECK_EQ(request_parse(&rq, cases[i].api, body.at, body.n, &limits, &p), !cases[i].status);
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        CHECK_MSG(p.status == cases[i].status, "%d: %s", p.status, p.text);
        CHECK_MSG(seconds < 3, "%.1f s", seconds);
    }
}
