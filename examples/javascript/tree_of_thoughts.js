/* symphony: {"description": "Searches the best of many ways to write a text, level by level."} */
// Tree of thoughts: the best texts go on in several ways, the model judges each, the best live on.
import { Session, branch, fill, samplingOf } from "symphony";

const PROMPT = '"""Sorts a list of numbers, step by step."""\n\n\ndef sort(numbers):\n';

export default async function main(input) {
  const { levels = 3, branches = 3, breadth = 2 } = input;
  const { step = "    # Step {level}.\n", judge = "\n\n# Is this right?\nok =" } = input;
  const { good = " True", bad = " False" } = input;
  const sampling = samplingOf(input, "tokens", 16);

  const session = new Session(input.prompt ?? PROMPT);
  let frontier = [{ session, steps: [], score: 0 }];
  const seen = [];
  for (let level = 1; level <= levels; level++) {
    const words = fill(step, { level });
    const ways = frontier.map(({ session, steps }, place) =>
      session.fanOut(branches, async (session, way) => {
        session.append(words);
        const reply = await session.reply(branch(sampling, place * branches + way));
        const score = await session.logOdds(judge, good, bad);
        return { session, steps: [...steps, reply.text], score };
      }),
    );
    const grown = (await Promise.all(ways)).flat();
    grown.sort((a, b) => b.score - a.score);
    seen.push(grown.map(({ score }) => ({ score })));
    frontier = grown.slice(0, breadth);
  }

  const [best] = frontier;
  best.session.append(input.conclusion ?? "\n    return");
  const reply = await best.session.reply(samplingOf(input, "conclusion_tokens", 16));
  const { score, steps } = best;
  return { text: reply.text, score, steps, levels: seen, ...best.session.usage };
}
