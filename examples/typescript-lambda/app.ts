import { App, Duration, Stack } from "aws-cdk-lib";
import { Metric, TreatMissingData } from "aws-cdk-lib/aws-cloudwatch";
import { SnsAction } from "aws-cdk-lib/aws-cloudwatch-actions";
import { Code, Function as LambdaFunction, FunctionUrlAuthType, Runtime } from "aws-cdk-lib/aws-lambda";
import { Topic } from "aws-cdk-lib/aws-sns";

import { TollgateQuota } from "./quota.js";

/** Returns the stack; `bundle` is a folder with handler.js and its node_modules, built for Linux on x86-64. */
export function stackOf(app: App, bundle: string): Stack {
  const stack = new Stack(app, "GeminiWithinQuota");
  const topic = new Topic(stack, "Alarms");
  const quota = new TollgateQuota(stack, "Quota", { alarmAction: new SnsAction(topic) });
  const answers = new LambdaFunction(stack, "Answers", {
    runtime: Runtime.NODEJS_20_X,
    handler: "handler.handler",
    code: Code.fromAsset(bundle),
    memorySize: 512,
    timeout: Duration.seconds(30),
    environment: { TOLLGATE_TABLE: quota.table.tableName, GEMINI_API_KEY: "{{resolve:secretsmanager:gemini:SecretString:key}}" },
  });
  quota.grantDecide(answers);
  answers.addFunctionUrl({ authType: FunctionUrlAuthType.AWS_IAM });
  new Metric({ namespace: "AWS/Lambda", metricName: "Errors", dimensionsMap: { FunctionName: answers.functionName }, statistic: "Sum" })
    .createAlarm(stack, "Errors", {
      threshold: 1,
      evaluationPeriods: 3,
      datapointsToAlarm: 2,
      treatMissingData: TreatMissingData.NOT_BREACHING,
    })
    .addAlarmAction(new SnsAction(topic));
  return stack;
}

if (require.main === module) {
  const app = new App({ outdir: "cdk.out" });
  stackOf(app, process.env.BUNDLE ?? "dist");
  app.synth();
}
