// A program as a model: it tells what it was asked, in the parts of an answer.

import { FinishReason, ModelAnswer, ModelRequest, Sampling, answerUsage, refuse } from "symphony-lip";

export function lip_main(): i32 {
  const request = ModelRequest.read();
  const told = request.body.get("told");
  const part = told === null ? "" : told.string();
  if (part == "refuse") refuse("come later", "n", 429, "busy");
  const count = request.n * max(request.prompts.length, 1);
  const answers = ModelAnswer.several(count);
  for (let i = 0; i < count; i++) {
    const answer = answers[i];
    if (part == "long") {
      answer.text("\u{1f600}".repeat(30_000));
    } else if (part == "generate") {
      request.sampling.constraint = request.constraint();
      const reply = request.session().reply(request.sampling);
      answer.text(reply.text());
      answer.finishAs(reply.finish);
    } else if (part == "scored") {
      const sampling: Sampling = { maxTokens: 2, logprobs: 2 };
      const choices = request.session().file.stream([1], sampling).rest();
      answer.textWith("ab", choices);
    } else if (part == "cut") {
      answer.text("half");
      answer.finish(FinishReason.CONTENT_FILTER);
      answerUsage(7, 3, 1);
    } else {
      answer.reasoning(describe(request));
      for (let k = 0; k < request.tools.length; k++) {
        const call = answer.call(request.tools[k].name);
        call.arguments('{"choice": ');
        call.arguments(`"${request.toolChoice} ${request.toolName}"}`);
      }
    }
  }
  return 0;
}

function describe(request: ModelRequest): string {
  let said = "";
  for (let i = 0; i < request.messages.length; i++) {
    const message = request.messages[i];
    said += `${message.role}[${message.reasoning}|${message.content}|`;
    for (let k = 0; k < message.calls.length; k++) {
      said += `${message.calls[k].id} ${message.calls[k].name} ${message.calls[k].arguments}`;
    }
    said += `|${message.answers}]`;
  }
  for (let i = 0; i < request.prompts.length; i++) said += `prompt[${request.prompts[i]}]`;
  const sampling = request.sampling;
  return said + ` ${request.maxTokens} ${request.logprobs} ${sampling.temperature} ${sampling.stop.join(",")}`;
}
