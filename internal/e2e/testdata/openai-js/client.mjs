// Uses a running server through OpenAI's JavaScript client, and exits with 0 when
// everything is as the client's users expect. Arguments: base URL, API key, model.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const [baseURL, apiKey, model] = process.argv.slice(2);
const api = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const chat = {
  model,
  messages: [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: [{ type: 'text', text: 'Hello' }] },
  ],
  max_completion_tokens: 24,
  temperature: 0.8,
  seed: 11,
  logprobs: true,
  top_logprobs: 3,
};
const completion = { model, prompt: 'Once upon a time', max_tokens: 20, seed: 5, logprobs: 2 };

// middle picks a stop string out of an answer, and what should stay before it.
function middle(text) {
  const runes = [...text];
  const at = Math.floor(runes.length / 2);
  const stop = runes.slice(at, at + 3).join('');
  return [stop, text.split(stop)[0]];
}

async function models() {
  const list = [];
  for await (const m of api.models.list()) list.push(m.id);
  assert.deepEqual(list, [model]);
  assert.equal((await api.models.retrieve(model)).id, model);
}

async function chats() {
  const answer = await api.chat.completions.create(chat);
  const [choice] = answer.choices;
  const text = choice.message.content;
  assert.equal(choice.message.role, 'assistant');
  assert.equal(choice.finish_reason, 'length');
  assert.equal(answer.usage.completion_tokens, 24);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 24);
  assert.equal(choice.logprobs.content.length, 24);
  assert.equal(choice.logprobs.content[0].top_logprobs.length, 3);
  const bytes = Uint8Array.from(choice.logprobs.content.flatMap((l) => l.bytes));
  assert.equal(new TextDecoder().decode(bytes), text);

  const again = await api.chat.completions.create(chat);
  assert.equal(again.choices[0].message.content, text, 'the same seed gives another answer');
  const other = await api.chat.completions.create({ ...chat, seed: 12 });
  assert.notEqual(other.choices[0].message.content, text, 'another seed gives the same answer');

  const [stop, before] = middle(text);
  const stopped = await api.chat.completions.create({ ...chat, stop });
  assert.equal(stopped.choices[0].message.content, before);
  assert.equal(stopped.choices[0].finish_reason, 'stop');

  let streamed = '';
  let chunks = 0;
  let usage;
  const stream = await api.chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    chunks++;
    streamed += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, text);
  assert.ok(chunks > 10, `24 tokens came in ${chunks} chunks`);
  assert.deepEqual(usage, answer.usage);

  // The client's own helper puts a stream together and checks its shape.
  const final = await api.chat.completions.stream(chat).finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
}

async function samples() {
  const answer = await api.chat.completions.create({ ...chat, n: 2 });
  assert.deepEqual(answer.choices.map((c) => c.index), [0, 1]);
  assert.notEqual(answer.choices[0].message.content, answer.choices[1].message.content);
  assert.equal(answer.usage.completion_tokens, 48);
  const texts = ['', ''];
  for await (const chunk of await api.chat.completions.create({ ...chat, n: 2, stream: true })) {
    for (const c of chunk.choices) texts[c.index] += c.delta.content ?? '';
  }
  assert.ok(texts[0] && texts[1] && texts[0] !== texts[1]);
}

async function completions() {
  const answer = await api.completions.create(completion);
  const [choice] = answer.choices;
  assert.equal(answer.usage.completion_tokens, 20);
  assert.equal(choice.finish_reason, 'length');
  assert.equal(choice.logprobs.tokens.length, 20);
  assert.equal(choice.logprobs.top_logprobs.length, 20);
  const [stop, before] = middle(choice.text);
  const stopped = await api.completions.create({ ...completion, stop: [stop] });
  assert.equal(stopped.choices[0].text, before);
  assert.equal(stopped.choices[0].finish_reason, 'stop');
  let streamed = '';
  let usage;
  for await (const chunk of await api.completions.create({ ...completion, stream: true, stream_options: { include_usage: true } })) {
    streamed += chunk.choices[0]?.text ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, choice.text);
  assert.deepEqual(usage, answer.usage);
  const tokens = await api.completions.create({ ...completion, prompt: [[72, 101, 108], [108, 111]] });
  assert.equal(tokens.choices.length, 2);
}

async function errors() {
  const cases = [
    [{ model: 'gpt-none' }, OpenAI.NotFoundError, 404, 'model_not_found', 'model'],
    [{ tools: [{ type: 'function', function: { name: 'f' } }] }, OpenAI.BadRequestError, 400, 'unsupported_parameter', 'tools'],
    [{ response_format: { type: 'json_object' } }, OpenAI.BadRequestError, 400, 'unsupported_value', 'response_format'],
    [{ messages: [{ role: 'user', content: 'long '.repeat(2000) }] }, OpenAI.BadRequestError, 400, 'context_length_exceeded', 'messages'],
  ];
  for (const [change, type, status, code, param] of cases) {
    for (const stream of [false, true]) {
      await assert.rejects(api.chat.completions.create({ ...chat, ...change, stream }), (err) => {
        assert.ok(err instanceof type, `${code}: ${err}`);
        assert.deepEqual([err.status, err.code, err.param], [status, code, param]);
        return true;
      });
    }
  }
  const stranger = new OpenAI({ baseURL, apiKey: 'wrong', maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
}

for (const test of [models, chats, samples, completions, errors]) {
  await test();
  console.log(`ok ${test.name}`);
}
