// Translates the lines of standard input, a JSON list, with a folder written by `export --to transformers.js`.
import { readFileSync } from "node:fs";
import { env, pipeline } from "@huggingface/transformers";

const [folder, batchSize] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = "/";
const lines = JSON.parse(readFileSync(0, "utf8"));
const translator = await pipeline("translation", folder, { session_options: { intraOpNumThreads: 1 } });
const texts = [];
for (let i = 0; i < lines.length; i += +batchSize) {
  const outputs = await translator(lines.slice(i, i + +batchSize));
  texts.push(...outputs.map((output) => output.translation_text));
}
console.log(JSON.stringify(texts));
