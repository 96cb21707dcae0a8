// llama.cpp for generate_peers.py and gguf_peers.py: reads a turn a line. {"prompt": [...], "count": n}
// is answered with the seconds of the prompt and of the tokens after it, those of the processor, and
// the tokens; {"logits": [...]} with the logits behind the last of these tokens; {"text": "..."} with
// its tokens, those of control tokens in it by their names. Needs npm's node-llama-cpp.
//
//     node llama_cpp_peer.mjs MODEL.gguf CONTEXT THREADS

import {createRequire} from "node:module";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const [path, contextSize, threads] = [process.argv[2], +process.argv[3], +process.argv[4]];
const here = createRequire(process.cwd() + "/");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(here.resolve("node-llama-cpp")));

const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, maxThreads: threads, logLevel: LlamaLogLevel.error
});
const model = await llama.loadModel({modelPath: path});
const context = await model.createContext({
    contextSize, batchSize: 512, flashAttention: true, threads: {ideal: threads, min: threads}
});
const sequence = context.getSequence();
const processorSeconds = () => {
    const {user, system} = process.cpuUsage();
    return (user + system) / 1e6;
};
const logitsBehind = async (tokens) => {
    await sequence.clearHistory();
    const asked = [tokens.at(-1), {generateNext: {logits: true, options: {temperature: 0}}}];
    const results = await sequence.controlledEvaluate([...tokens.slice(0, -1), asked]);
    const found = new Array(results.at(-1).next.logits.size);
    for (const [token, logit] of results.at(-1).next.logits)
        found[token] = logit;
    return found;
};
console.log(JSON.stringify({ready: llama.systemInfo}));

for await (const line of createInterface({input: process.stdin})) {
    const {prompt, count, logits, text} = JSON.parse(line);
    if (text !== undefined) {
        console.log(JSON.stringify({tokens: [...model.tokenize(text, true)]}));
        continue;
    }
    if (logits !== undefined) {
        console.log(JSON.stringify({logits: await logitsBehind(logits)}));
        continue;
    }
    await sequence.clearHistory();
    const start = performance.now(), cpu = processorSeconds();
    await sequence.evaluateWithoutGeneratingNewTokens(prompt.slice(0, -1));
    const filled = performance.now(), middle = processorSeconds();
    const tokens = [];
    const generated = sequence.evaluate(prompt.slice(-1), {temperature: 0, yieldEogToken: true});
    for await (const token of generated) {
        tokens.push(token);
        if (tokens.length >= count)
            break;
    }
    const end = performance.now();
    const answer = {
        prefill: (filled - start) / 1e3, decode: (end - filled) / 1e3, tokens,
        prefillCpu: middle - cpu, decodeCpu: processorSeconds() - middle
    };
    console.log(JSON.stringify(answer));
}
process.exit(0);
