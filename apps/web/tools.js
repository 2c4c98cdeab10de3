/* tools.js - tools of MCP servers that this page's server runs: offered to the model, and called when
 * the user allows it. Results are text. */

/* {name, server, auto, declared, left_out}; left_out: why the model that was asked last is not told of
 * it */
let serverTools = [];
const leftOut = new Set(); /* the sentences on these that were shown */
const TOOL_ROUNDS = 16; /* answers with calls in a row that run without a question */
/* id of a conversation -> the declarations, as text, of tools that its user always allows. Lost with
 * the page. */
const allowedTools = new Map();

/* model: the one that answers, which is loaded for it; without one no tool is left out. */
async function loadTools(model, signal) {
  const path = 'mcp/tools' + (model ? '?model=' + encodeURIComponent(model) : '');
  try {
    const r = await fetch(path, { headers: headers(false), signal }),
      list = r.ok ? listOf((await r.json()).tools) : [];
    serverTools = list.filter((t) => t && typeof t.name === 'string' && t.declared);
  } catch {
    serverTools = []; /* connect, or the answer, says what is wrong */
  }
  const said = serverTools
    .filter((t) => t.left_out)
    .map((t) => `${model} does without the tool ${t.name} of ${t.server}: ${textOr(t.left_out, 300, '')}`)
    .filter((text) => !leftOut.has(text));
  said.forEach((text) => leftOut.add(text));
  if (said.length) toast(said[0] + (said.length > 1 ? ` And ${said.length - 1} more.` : ''));
}

const offeredTools = () => serverTools.filter((t) => !t.left_out).map((t) => t.declared);

const serverTool = (name) => serverTools.find((t) => t.name === name);
const allowedIn = (c) => allowedTools.get(c.id) || new Set();
const isAllowed = (c, tool) => tool.auto || allowedIn(c).has(JSON.stringify(tool));

const resultOf = (c, call) =>
  shownPath(c).find((x) => x.role === 'tool' && x.tool_call_id === call.id);

/* How many answers with calls stand at the end of the conversation. */
function toolRounds(c) {
  const path = shownPath(c);
  let n = 0;
  for (let i = path.length; i-- > 0 && path[i].role !== 'user'; ) if (path[i].calls) n++;
  return n;
}

/* Runs a call, and the calls after it that need no question. */
async function runCall(c, m, call) {
  if (isBusy(c) || resultOf(c, call)) return;
  const signal = takeOff(c, null);
  let text = null;
  try {
    const r = await post('mcp/call', { name: call.name, arguments: call.arguments || '{}' }, signal);
    text = textOr((await r.json()).content, 1 << 20, '');
  } catch (e) {
    if (!signal.aborted) text = 'error: ' + troubleOf(e);
  }
  settle(c);
  if (text === null) return; /* stopped: the call stays open */
  addResult(c, m, call, text);
  runAllowed(c, m);
}

/* Runs the first open call of m that needs no question. */
function runAllowed(c, m) {
  if (!m.calls || m.finish === 'cancelled' || isBusy(c) || toolRounds(c) > TOOL_ROUNDS) return;
  const call = m.calls.find((x) => !resultOf(c, x)),
    tool = call && serverTool(call.name);
  if (tool && isAllowed(c, tool)) runCall(c, m, call);
}

/* The question whether a call may run. */
function consentNode(c, m, call, tool) {
  const button = (label, run) => el('button', { type: 'button', onclick: run }, label);
  return el(
    'div',
    { className: 'consent', role: 'group', 'aria-label': `May ${call.name} run?` },
    el('span', {}, `Run it on ${tool.server}?`),
    button('Allow once', () => runCall(c, m, call)),
    button('Allow for this chat', () => {
      allowedTools.set(c.id, allowedIn(c).add(JSON.stringify(tool)));
      runCall(c, m, call);
    }),
    button('Refuse', () => {
      addResult(c, m, call, 'error: the user refused this call.');
      runAllowed(c, m);
    }),
  );
}
