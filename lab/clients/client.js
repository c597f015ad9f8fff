// The server, asked by OpenAI's own JavaScript client: each output is the one that `generate` writes. What does not
// depend on the client is in client.py.
'use strict';

const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const OpenAI = require('openai');

const { ADDRESS, MODEL, OPENAI_JS, PROGRAM } = process.env;

const client = new OpenAI({ baseURL: `${ADDRESS}/v1`, apiKey: 'sesame', maxRetries: 0 });
let checks = 0;

function same(what, found, expected) {
  checks += 1;
  assert.deepEqual(found, expected, what);
}

function greedy(prompt, tokens) {
  const options = ['--model', MODEL, '--json', '--temperature', '0', '--max-new-tokens', String(tokens)];
  return JSON.parse(execFileSync(PROGRAM, ['generate', prompt, ...options], { stdio: ['ignore', 'pipe', 'ignore'] }));
}

async function refused(kind, status, ask) {
  const error = await ask().then(() => assert.fail(`${kind.name} was expected`), (error) => error);
  assert.ok(error instanceof kind, `${kind.name} was expected: ${error}`);
  same(kind.name, error.status, status);
  return error;
}

async function metric(name) {
  const page = await (await fetch(`${ADDRESS}/metrics`, { headers: { Authorization: 'Bearer sesame' } })).text();
  const lines = page.split('\n').filter((line) => line.startsWith(`${name}{`));
  return lines.map((line) => Number(line.slice(line.lastIndexOf(' '))));
}

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

async function main() {
  same('models', (await all(await client.models.list())).map((model) => model.id), ['storyteller']);

  const story = greedy('Once upon a time', 40);
  const asked = { model: 'storyteller', prompt: 'Once upon a time', temperature: 0, max_tokens: 40 };
  const whole = await client.completions.create(asked);
  same('a completion', whole.choices[0].text, story.text);
  const counts = [story.tokens.prompt.length, story.tokens.new.length];
  same('usage', [whole.usage.prompt_tokens, whole.usage.completion_tokens], counts);
  const options = { ...asked, stream: true, stream_options: { include_usage: true } };
  const chunks = await all(await client.completions.create(options));
  same('a stream', chunks.map((chunk) => chunk.choices[0]?.text ?? '').join(''), story.text);
  same('usage of a stream', chunks.at(-1).usage.total_tokens, counts[0] + counts[1]);
  same('why it ended', chunks.at(-2).choices[0].finish_reason, whole.choices[0].finish_reason);

  const expected = greedy('user: Tell me a story.\nteller:', 30).text;
  const messages = [{ role: 'user', content: ' Tell me a story. ' }];
  const chat = { model: 'storyteller', messages, temperature: 0, max_completion_tokens: 30 };
  same('a chat', (await client.chat.completions.create(chat)).choices[0].message.content, expected);
  const stream = await all(await client.chat.completions.create({ ...chat, stream: true }));
  same('a chat as a stream', stream.map((chunk) => chunk.choices[0].delta.content ?? '').join(''), expected);

  const wrong = { model: 'storyteller', prompt: 'a', n: 0 };
  same('what is wrong', (await refused(OpenAI.BadRequestError, 400, () => client.completions.create(wrong))).param, 'n');
  const unknown = { model: 'gpt-4', prompt: 'a' };
  await refused(OpenAI.NotFoundError, 404, () => client.completions.create(unknown));
  const stranger = new OpenAI({ baseURL: `${ADDRESS}/v1`, apiKey: 'guess', maxRetries: 0 });
  await refused(OpenAI.AuthenticationError, 401, () => stranger.completions.create(unknown));

  const long = { model: 'storyteller', prompt: 'a', max_tokens: 900, stream: true, seed: 1, n: 8 };
  const cut = await client.completions.create(long);
  for await (const _ of cut) break;
  for (let turn = 0; turn < 1000 && (await metric('vllm:num_requests_running'))[0] !== 0; turn += 1);
  same('sequences that run when their client has gone', await metric('vllm:num_requests_running'), [0]);

  console.log(`openai ${OPENAI_JS} for JavaScript: ${checks} answers as expected`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
