// Encodes texts and decodes ids with exported tokenizers: standard input and output are JSON.
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";

const cases = JSON.parse(readFileSync(0, "utf8")).map(({ definition, settings, texts, ids }) => {
  const tokenizer = new Tokenizer(definition, settings);
  return {
    ids: texts.map((text) => tokenizer.encode(text).ids),
    texts: ids.map((row) => tokenizer.decode(row, { skip_special_tokens: true })),
  };
});
console.log(JSON.stringify(cases));
